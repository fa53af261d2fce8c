"""What a stack is called with: inputs and a memory that do not fit are refused."""

from __future__ import annotations

from typing import NamedTuple

import torch

from zoo.inputs.images import check_images
from zoo_components.modules.embedding import not_ids


class Inputs(NamedTuple):
    """What a stack is called with.

    Args:
        takes_ids: whether its embedding takes ids of tokens.
        width: that of the vectors that the embedding takes; None if any fits, or none is taken.
        image_shape: the (channels, height, width) of the images that it takes; None if it takes
            none.
        n_vectors: the number of vectors that each input becomes; None if that follows its length.
    """

    takes_ids: bool
    width: int | None
    image_shape: tuple[int, int, int] | None
    n_vectors: int | None

    def check(self, inputs: torch.Tensor) -> None:
        """Refuse inputs that are none of these.

        Raises:
            TypeError: they are not a tensor, not of floating-point numbers where they must be, or
                of such numbers where ids must be.
            ValueError: their shape is wrong.
        """
        if self.image_shape is not None:
            check_images(inputs, self.image_shape)
            return
        if not isinstance(inputs, torch.Tensor):
            what = type(inputs).__name__
            raise TypeError(
                f"a model takes a tensor, such as torch.tensor([[5, 9, 33]]), not a {what}"
            )
        if self.takes_ids and self.width is None and inputs.is_floating_point():
            raise not_ids(inputs)
        if inputs.is_floating_point() or self.width is not None:
            self._check_vectors(inputs)
        elif inputs.dim() != 2:
            hint = "; a single sequence is `ids[None]`" if inputs.dim() == 1 else ""
            raise ValueError(f"ids are (batch, length), not {tuple(inputs.shape)}{hint}")

    def _check_vectors(self, inputs: torch.Tensor) -> None:
        if not inputs.is_floating_point():
            raise TypeError(f"this model takes vectors, floating-point numbers, not {inputs.dtype}")
        if inputs.dim() not in (2, 3) or self.width not in (None, inputs.shape[-1]):
            sizes = f"(batch, length, {self.width or 'width'})"
            raise ValueError(f"vectors are {sizes}, not {tuple(inputs.shape)}")


def check_memory(
    memory: torch.Tensor | None, width: int | None, batch: int, *, shared: bool
) -> None:
    """Refuse a memory that is missing or does not fit a stack whose layers attend to one of this
    width, or to none. With `shared`, several rows of the batch may share one row of the memory.

    Raises:
        ValueError: the memory is missing, no layer would attend to it, or its shape is wrong.
    """
    if memory is None and width is None:
        return
    if memory is None:
        raise ValueError(
            f"this decoder attends to a memory: pass `memory`, (batch, memory length, {width})"
        )
    if width is None:
        raise ValueError("this decoder attends to no memory: its spec states no `memory_width`")
    shape = tuple(memory.shape)
    if len(shape) != 3 or shape[2] != width:
        raise ValueError(f"a memory is (batch, memory length, {width}), not {shape}")
    rows = shape[0]
    if rows != batch and not (shared and rows > 0 and batch % rows == 0):
        raise ValueError(
            f"{batch} target sequences need a memory of as many rows, one from each source; "
            f"this one has {rows}"
        )
