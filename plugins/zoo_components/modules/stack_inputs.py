"""What a stack is called with: inputs and a memory that do not fit are refused."""

from __future__ import annotations

import torch

from zoo_components.modules.embedding import not_ids


def check_inputs(inputs: torch.Tensor, width: int | None, *, takes_ids: bool) -> None:
    """Refuse inputs that are neither ids nor vectors, or are no vectors of this width, if it is not
    None.

    Raises:
        TypeError: they are not a tensor, not of floating-point numbers where they must be, or of
            such numbers where ids must be.
        ValueError: their shape is wrong.
    """
    if not isinstance(inputs, torch.Tensor):
        what = type(inputs).__name__
        raise TypeError(f"a model takes a tensor, such as torch.tensor([[5, 9, 33]]), not a {what}")
    if takes_ids and width is None and inputs.is_floating_point():
        raise not_ids(inputs)
    if inputs.is_floating_point() or width is not None:
        if not inputs.is_floating_point():
            raise TypeError(f"this model takes vectors, floating-point numbers, not {inputs.dtype}")
        if inputs.dim() not in (2, 3) or width not in (None, inputs.shape[-1]):
            sizes = f"(batch, length, {width or 'width'})"
            raise ValueError(f"vectors are {sizes}, not {tuple(inputs.shape)}")
    elif inputs.dim() != 2:
        hint = "; a single sequence is `ids[None]`" if inputs.dim() == 1 else ""
        raise ValueError(f"ids are (batch, length), not {tuple(inputs.shape)}{hint}")


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
