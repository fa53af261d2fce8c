"""A decoder whose text has images in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from zoo.linear import Linear, activated
from zoo.transformer import Pixels
from zoo_components.modules.builders import Output
from zoo_components.modules.inserting import InsertingDecoder, Read
from zoo_components.modules.stack import Maps, Stack


class Merging(NamedTuple):
    """How the states of patches become fewer.

    Args:
        shape: the rows and the columns of the patches that become one state.
        mean: whether that is their mean, and not all of them as one vector, row by row.
        grid: the number of rows and of columns of patches; None if inputs differ in them.
    """

    shape: tuple[int, int]
    mean: bool
    grid: tuple[int, int] | None

    def __call__(self, x: torch.Tensor, grid: tuple[int, int] | None) -> torch.Tensor:
        """(n, rows * columns, width) to (n, states, width), or as many times the width as patches
        become one without `mean`. `grid` are the rows and columns of these inputs, if they
        differ."""
        grid = self.grid or grid
        assert grid is not None  # of images of one size or of this one
        n, _, width = x.shape
        high, wide = self.shape
        shape = (n, grid[0] // high, high, grid[1] // wide, wide, width)
        merged = x.reshape(shape).transpose(2, 3).flatten(1, 2)
        return merged.mean((2, 3)) if self.mean else merged.flatten(2)


class Projector(nn.Module):
    """maps(norm(merge_proj(merged(x)))).

    Args:
        merging: how patches are merged, if they are.
        merge_proj: the linear map of what is merged, if there is one.
        norm: the norm of what the maps take.
        maps: by name, `proj`, or `up_proj`, `activation` and `down_proj`.
    """

    proj: Linear
    up_proj: Linear
    activation: nn.Module
    down_proj: Linear

    def __init__(
        self,
        *,
        merging: Merging | None,
        merge_proj: Linear | None,
        norm: nn.Module,
        maps: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self.merging, self.merge_proj, self.norm = merging, merge_proj, norm
        self.is_single = "proj" in maps
        for name, one in maps.items():
            self.add_module(name, one)

    def forward(self, x: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
        """(n_images, vectors, d_in) to (n_images, states, d_out). `grid` are the numbers of rows
        and of columns of patches, where images differ in them."""
        if self.merging is not None:
            x = self.merging(x, grid)
        if self.merge_proj is not None:
            x = self.merge_proj(x)
        return self.mapped(self.norm(x))

    def mapped(self, x: torch.Tensor) -> torch.Tensor:
        """maps(x), (..., d_merged) to (..., d_out)."""
        if self.is_single:
            return self.proj(x)
        return self.down_proj(activated(self.up_proj, self.activation, x))


class ImageTextDecoder(InsertingDecoder):
    """An `InsertingDecoder` of images of one size.

    Args:
        n_states: the number of states of an image that stand in a text.
        n_before: the number of states before these that are left out.
        bidirectional: which tokens attend to later ones too.
        options: as for `InsertingDecoder`.
    """

    medium = "image"
    image: Stack

    def __init__(
        self,
        *,
        n_states: int,
        n_before: int,
        bidirectional: Literal["none", "image", "prompt"],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.n_states, self.n_before = n_states, n_before
        self.bidirectional = bidirectional

    def read_images(self, images: Pixels) -> torch.Tensor | Sequence[torch.Tensor]:
        """The states that stand in a text for images (n_images, channels, height, width):
        (n_images, states of an image, width of the vectors of tokens)."""
        return self.of_images(images, return_attention=False)[0]

    def insert_images(
        self,
        target: torch.Tensor,
        images: Pixels,
        *,
        target_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of a text with images in it, and the states that `decode` takes as `inserted`.

        Args:
            target: ids (batch, length), with `image_id` at the place of each state of an image.
            images: all images in their order, text by text, (n_images, channels, height, width).
            target_mask: a mask (batch, length) hides padding, in which no image stands; those of
                other shapes change nothing here.

        Returns:
            The ids, (batch, length), with the number of a row of the states in the place of each
            `image_id`, counted from the size of the vocabulary; and the states, (n_images * states
            of an image, width).

        Raises:
            ValueError: a text has no place for a whole number of images, or all have places for
                another number of images than are given.
        """
        return self._inserting(target, images, target_mask)

    def forward(
        self,
        target: torch.Tensor,
        images: Pixels | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        prompt: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Score the next token of each position of texts with images in them.

        Args:
            target: ids (batch, length), with `image_id` at the place of each state of an image.
            images: all images in their order, text by text, (n_images, channels, height, width).
                Without any, `image_id` is a token like others.
            target_mask: which positions may be attended to at most; boolean, True = attend, (batch,
                length) or another shape of `zoo.transformer.check_mask`.
            prompt: which tokens attend to each other in both directions, boolean, (batch, length),
                if the spec says `bidirectional = "prompt"`: those to which the others are the
                answer. None do unless given.
            return_attention: also return the attention maps, those of the layers that read images
                as `encoder`.

        Returns:
            The head's output, (batch, target length, vocabulary), and the `AttentionMaps` if asked
            for.

        Raises:
            ValueError: as `insert_images`; or there is a `prompt`, and the spec says no such thing.
        """
        return self._scored(
            target,
            images,
            target_mask=target_mask,
            return_attention=return_attention,
            prompt=prompt,
        )

    def _taken(
        self, target: torch.Tensor, inserted: Any, prompt: torch.Tensor | None
    ) -> dict[str, Any]:
        found = super()._taken(target, inserted, prompt)
        if prompt is not None:
            if self.bidirectional != "prompt":
                raise ValueError('a `prompt` is for a spec that says `bidirectional = "prompt"`')
            found["blocks"] = prompt.long() - 1
        elif inserted is not None and self.bidirectional == "image":
            # The states of an image have consecutive numbers; those of tokens are negative.
            found["blocks"] = (target - self.vocab).div(self.n_states, rounding_mode="floor")
        return found

    def _read(self, images: Pixels, *, return_attention: bool) -> tuple[Sequence[Read], Maps]:
        states, maps = self.of_images(images, return_attention=return_attention)
        return [Read(one) for one in states], maps

    def of_images(self, images: Pixels, *, return_attention: bool) -> tuple[torch.Tensor, Maps]:
        """The states of images of one size, (n_images, states, width), and the maps."""
        states, maps = self.image(images, return_weights=return_attention)
        return self.projector(states[:, self.n_before :]), maps
