"""A decoder whose text has images of any size in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.inputs.images import check_images_of_any_size
from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo.purpose import AnySize
from zoo.transformer import Pixels
from zoo_components.modules.builders import Output
from zoo_components.modules.embedding import Vectors, refuse_types
from zoo_components.modules.image_text import Projector
from zoo_components.modules.inserting import InsertingDecoder, Read
from zoo_components.modules.patches import check_dtype
from zoo_components.modules.stack import Maps, Stack


class PatchVectors(Vectors):
    """dropout(norm(linear(patches)) + positions); the norm may be None."""

    def __init__(
        self,
        *,
        width: int,
        d_model: int,
        bias: bool,
        norm: nn.Module | None,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        self.patches = Linear(width, d_model, bias=bias)
        self.norm = norm

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, patches, width) to (batch, patches, d_model). Raises TypeError if `x` is of
        another dtype than the weights, and autocast converts neither."""
        check_dtype(x, self.patches.weight.dtype)
        vectors = self.patches(x)
        return vectors if self.norm is None else self.norm(vectors)


class PlacedPatchVectors(PatchVectors):
    """dropout(linear(patches) + places + positions), with a vector of the place of each patch."""

    axes = 2

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `PatchVectors.forward`; `coordinates` are the row and the column of each patch, (batch
        or 1, length, 2), of all patches of images of one size, or both are the position if None."""
        refuse_types(token_types)
        if coordinates is None:
            coordinates = positions[..., None].expand(*positions.shape, 2)
        x = self.vectors(x)
        return self.positioned(x + self.placed(coordinates, x.dtype), positions)

    def placed(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The vectors of these places, (..., length, 2): (..., length, d_model)."""
        raise NotImplementedError


class GridPatchVectors(PlacedPatchVectors):
    """`PlacedPatchVectors` of a learned table of (grid_size, grid_size) vectors, stretched over the
    image."""

    def __init__(self, *, grid_size: int, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.grid_size = grid_size
        self.grid = nn.Embedding(grid_size**2, d_model)

    def placed(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `PlacedPatchVectors.placed`, between the four nearest of the grid. Shares are computed
        in float32, or float64 for a float64 model."""
        exact, last = torch.promote_types(dtype, torch.float32), self.grid_size - 1
        ends = coordinates.amax(-2, keepdim=True).clamp(min=1)
        places = coordinates.clamp(min=0).to(exact) * last / ends
        first = places.floor().long()
        rows, columns = (
            ((one, 1 - share), ((one + 1).clamp(max=last), share))
            for one, share in zip(first.unbind(-1), (places - first).unbind(-1), strict=True)
        )
        found = places.new_zeros(())
        for (row, of_row), (column, of_column) in product(rows, columns):
            shares = (of_row * of_column)[..., None]
            found = found + self.grid(row * self.grid_size + column) * shares
        return found.to(dtype)


class Inserted(NamedTuple):
    """The states of images in texts, in their order.

    Args:
        states: (n, width).
        steps: by how many positions each is after the token before it, (n,): the first of an image
            by as many as the larger number of its rows and columns, the others by none. None if
            each is by one.
        offsets: by how much the time, the row and the column of each are more than its position,
            (n, 3). None if all are the position.
        deep: what is added to them after each of the first layers, (n, d_model).
        images: the number of the image of each, (n,), if its states attend to each other in both
            directions.
        block_layers: the numbers of the layers in which they do.
    """

    states: torch.Tensor
    steps: torch.Tensor | None
    offsets: torch.Tensor | None
    deep: tuple[torch.Tensor, ...] = ()
    images: torch.Tensor | None = None
    block_layers: frozenset[int] = frozenset()

    def of(self, rows: torch.Tensor) -> dict[str, Any]:
        """What a stack takes of tokens that stand for these rows, (batch, length), negative for
        those of text."""
        found: dict[str, Any] = {"inserted": self.states}
        text = rows < 0
        rows = rows.clamp(min=0)
        if self.steps is not None and self.offsets is not None:
            found["steps"] = self.steps[rows].masked_fill(text, 1)
            found["offsets"] = self.offsets[rows].masked_fill(text[..., None], 0)

        if self.images is not None:
            found["blocks"] = self.images[rows].masked_fill(text, -1)
            found["block_layers"] = self.block_layers

        def deepened(place: int, x: torch.Tensor) -> torch.Tensor:
            if place >= len(self.deep):
                return x
            return x + self.deep[place][rows].masked_fill(text[..., None], 0.0)

        return {**found, "after_layer": deepened} if self.deep else found


class NativeImageTextDecoder(InsertingDecoder):
    """An `InsertingDecoder` of images of any size.

    Args:
        channels: that of the images.
        any_size: how they are cut.
        places: whether the coordinates of a state are its place in the image.
        options: as for `InsertingDecoder`.
    """

    medium = "image"
    image: Stack
    projector: Projector

    def __init__(self, *, channels: int, any_size: AnySize, places: bool, **options: Any) -> None:
        super().__init__(**options)
        self.channels, self.any_size, self.places = channels, any_size, places

    def read_images(self, images: Pixels) -> list[torch.Tensor]:
        """The states that stand in a text for each image, (states of the image, width of the
        vectors of tokens), row by row.

        Args:
            images: each (channels, height, width), of sides that are multiples of that of a state.

        Raises:
            TypeError: they are no tensors of floating-point numbers, or of another dtype than the
                weights.
            ValueError: the shape of one is wrong.
        """
        return [one.states for one in self._read(images, return_attention=False)[0]]

    def insert_images(
        self, target: torch.Tensor, images: Pixels, *, target_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Inserted]:
        """The ids of a text with images in it, and what `decode` takes as `inserted`.

        Args:
            target: ids (batch, length), with `image_id` at the place of each state of an image.
            images: all images in their order, text by text, each (channels, height, width).
            target_mask: a mask (batch, length) hides padding, in which no image stands; those of
                other shapes change nothing here.

        Returns:
            The ids, (batch, length), with the number of a row of the states in the place of each
            `image_id`, counted from the size of the vocabulary; and the states.

        Raises:
            TypeError: as `read_images`.
            ValueError: as `read_images`; a text has no places for a whole number of images, or all
                have places for another number of images than are given.
        """
        return self._inserting(target, images, target_mask)

    def forward(
        self,
        target: torch.Tensor,
        images: Pixels | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Score the next token of each position of texts with images in them.

        Args:
            target: ids (batch, length), with `image_id` at the place of each state of an image.
            images: all images in their order, text by text: a list of tensors (channels, height,
                width), or a tensor of several of one size. Without any, `image_id` is a token like
                others.
            target_mask: which positions may be attended to at most; boolean, True = attend, (batch,
                length) or another shape of `zoo.transformer.check_mask`.
            return_attention: also return the attention maps, those of the layers that read images
                as `encoder`: of images of several sizes, those of all layers for each size in turn.

        Returns:
            The head's output, (batch, target length, vocabulary), and the `AttentionMaps` if asked
            for.

        Raises:
            TypeError: as `insert_images`.
            ValueError: as `insert_images`.
        """
        return self._scored(
            target, images, target_mask=target_mask, return_attention=return_attention
        )

    def _taken(
        self, target: torch.Tensor, inserted: Inserted | None, prompt: torch.Tensor | None
    ) -> dict[str, Any]:
        return {} if inserted is None else inserted.of(target - self.vocab)

    def _read(self, images: Pixels, *, return_attention: bool) -> tuple[Sequence[Read], Maps]:
        """As `InsertingDecoder._read`. Images of one size are read together."""
        checked = check_images_of_any_size(images, self.channels, self.any_size)
        found: dict[int, Read] = {}
        maps: Maps = {}
        patch_size, frames = self.any_size.patch_size, self.any_size.frames
        for shape in dict.fromkeys(image.shape for image in checked):
            numbers = [number for number, image in enumerate(checked) if image.shape == shape]
            rows, columns = (size // patch_size for size in shape[1:])
            patches = patches_of(torch.stack([checked[n] for n in numbers]), patch_size, frames)
            counted = torch.arange(rows * columns, device=patches.device)
            offsets = places_in(columns, counted) - counted[:, None]
            every, of_size = self._states(
                patches, (rows, columns), offsets=offsets[None], return_weights=return_attention
            )
            grid = self.any_size.grid(*shape[1:])
            for number, (states, *deep) in zip(numbers, zip(*every, strict=True), strict=True):
                found[number] = Read(states, grid, tuple(deep))
            maps = {kind: (*maps.get(kind, ()), *one) for kind, one in of_size.items()}
        return [found[number] for number in range(len(checked))], maps

    def _states(
        self, patches: torch.Tensor, grid: tuple[int, int], **options: Any
    ) -> tuple[list[torch.Tensor], Maps]:
        """The states that stand in a text for images of one size, whose patches are (batch,
        patches, width) and have these rows and columns, and what is added to them after each of the
        first layers of the decoder: (batch, states of an image, width). And the maps."""
        states, maps = self.image(patches, **options)
        return [self.projector(states, grid)], maps

    def _joined(self, read: Sequence[Read]) -> Inserted:
        steps = offsets = None
        states = super()._joined(read)
        if self.places:
            grids = [one.grid for one in read if one.grid is not None]
            each = [_coordinates(rows, columns, states.device) for rows, columns in grids]
            steps, offsets = (torch.cat(of_images) for of_images in zip(*each, strict=True))
        deep = (torch.cat(one) for one in zip(*(one.deep for one in read), strict=True))
        return Inserted(states, steps, offsets, tuple(deep))


class DeepstackImageTextDecoder(NativeImageTextDecoder):
    """A `NativeImageTextDecoder` that also adds the states after inner layers of the encoder of
    images to those after the first layers of the decoder (Meng et al. 2024, arXiv:2406.04334).

    Args:
        deep_layers: the layers of the encoder, counted from 0.
        deep_projectors: for each, the map to the width of the decoder.
        options: as for `NativeImageTextDecoder`.
    """

    def __init__(
        self,
        *,
        deep_layers: Sequence[int],
        deep_projectors: Iterable[Projector],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.deep_layers = tuple(deep_layers)
        self.deep_projectors = nn.ModuleList(deep_projectors)

    def _states(
        self, patches: torch.Tensor, grid: tuple[int, int], **options: Any
    ) -> tuple[list[torch.Tensor], Maps]:
        deep: list[torch.Tensor] = []

        def keep(place: int, x: torch.Tensor) -> torch.Tensor:
            if place in self.deep_layers:
                deep.append(self.deep_projectors[len(deep)](x, grid))
            return x

        states, maps = super()._states(patches, grid, after_layer=keep, **options)
        return [*states, *deep], maps


def patches_of(images: torch.Tensor, patch_size: int, frames: int) -> torch.Tensor:
    """The values of the patches, row by row, of images (batch, channels, height, width), (batch,
    patches, channels * frames * patch_size**2): those of a channel are one after the other, and
    repeated for each frame."""
    rows, columns = (size // patch_size for size in images.shape[2:])
    shape = (*images.shape[:2], rows, patch_size, columns, patch_size)
    patches = images.reshape(shape).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    return patches.unsqueeze(3).expand(-1, -1, -1, frames, -1, -1).flatten(2)


def places_in(columns: int, numbers: torch.Tensor) -> torch.Tensor:
    """The row and the column of these places, (n,), which are counted row by row, (n, 2)."""
    return torch.stack([numbers // columns, numbers % columns], -1)


def _coordinates(
    rows: int, columns: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Inserted.steps` and `Inserted.offsets` of the states of an image.

    All have the position of the last before the text that follows, and their coordinates are
    counted from the first after the text before: its time, which is that of the whole image, and
    its row and column.
    """
    longest, numbers = max(rows, columns), torch.arange(rows * columns, device=device)
    steps = torch.where(numbers == 0, longest, 0)
    times = torch.zeros_like(numbers)[:, None]
    return steps, torch.cat([times, places_in(columns, numbers)], 1) - (longest - 1)
