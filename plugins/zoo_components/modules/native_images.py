"""A decoder whose text has images of any size in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.cache import Cache
from zoo.image_inputs import check_images_of_any_size, images_of_texts
from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo.purpose import AnySize
from zoo.slots import Head
from zoo.transformer import Pixels
from zoo_components.modules.builders import Output, WithDecoder, maps_of
from zoo_components.modules.embedding import Vectors, refuse_types
from zoo_components.modules.image_text import Projector, numbered, places_of
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


class GridPatchVectors(PatchVectors):
    """dropout(linear(patches) + grid + positions), where the grid is a learned table of (grid_size,
    grid_size) vectors, stretched over the image."""

    axes = 2

    def __init__(self, *, grid_size: int, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.grid_size = grid_size
        self.grid = nn.Embedding(grid_size**2, d_model)

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
        return self.positioned(x + self.stretched(coordinates, x.dtype), positions)

    def stretched(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The vectors of the grid at these places, (..., length, 2), between the four nearest:
        (..., length, d_model). Shares are computed in float32, or float64 for a float64 model."""
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


class NativeImageTextDecoder(WithDecoder):
    """model(target, images) = head(decode(target with the states of images in it)).

    A state of an image is called for as a token is, by a number: those from the size of the
    vocabulary on are rows of tables of states. So what follows a text, such as its beams, needs
    nothing but its ids.

    Args:
        vocab: the number of tokens.
        image_id: the id of the token at whose places states stand.
        channels: that of the images.
        any_size: how they are cut.
        places: whether the coordinates of a state are its place in the image.
    """

    def __init__(
        self,
        *,
        image: Stack,
        projector: Projector,
        decoder: Stack,
        head: Head,
        vocab: int,
        image_id: int,
        channels: int,
        any_size: AnySize,
        places: bool,
    ) -> None:
        super().__init__()
        self.image, self.projector = image, projector
        self.decoder = decoder
        self.add_head(head)
        self.vocab, self.image_id, self.channels = vocab, image_id, channels
        self.any_size, self.places = any_size, places

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
        read, _ = self._read(self._checked(images), return_attention=False)
        return [states for states, *_ in read]

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
        checked = self._checked(images)
        return self._insert(
            target, checked, self._read(checked, return_attention=False)[0], target_mask
        )

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inserted: Inserted | None = None,
        return_attention: bool = False,
    ) -> Output:
        """The decoder's states, (batch, target length, d_model), and its maps if asked for.

        `target` and `inserted` are what `insert_images` returns, or ids alone; there is no memory.
        With a `cache`, `target` and `target_mask` are those of the next tokens.
        """
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=memory_mask,
            cache=cache,
            return_weights=return_attention,
            **({} if inserted is None else inserted.of(target - self.vocab)),
        )
        return (states, maps_of(decoder=maps)) if return_attention else states

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
            target_mask: as in `EncoderDecoder.forward`.
            return_attention: also return the attention maps, those of the layers that read images
                as `encoder`: of images of several sizes, those of all layers for each size in turn.

        Returns:
            The head's output, (batch, target length, vocabulary), and the `AttentionMaps` if asked
            for.

        Raises:
            TypeError: as `insert_images`.
            ValueError: as `insert_images`.
        """
        ids, inserted = target, None
        of_images: Maps = {}
        if images is not None:
            checked = self._checked(images)
            read, of_images = self._read(checked, return_attention=return_attention)
            ids, inserted = self._insert(target, checked, read, target_mask)
        states, maps = self.decoder(
            ids,
            mask=target_mask,
            return_weights=return_attention,
            **({} if inserted is None else inserted.of(ids - self.vocab)),
        )
        output = self.head_output(states, self.decoder, target, target_mask)
        return (output, maps_of(encoder=of_images, decoder=maps)) if return_attention else output

    def _checked(self, images: Pixels) -> tuple[torch.Tensor, ...]:
        return check_images_of_any_size(images, self.channels, self.any_size)

    def _read(
        self, images: tuple[torch.Tensor, ...], *, return_attention: bool
    ) -> tuple[list[Sequence[torch.Tensor]], Maps]:
        """What `_states` makes of each image, and the maps. Images of one size are read
        together."""
        found: dict[int, Sequence[torch.Tensor]] = {}
        maps: Maps = {}
        patch_size, frames = self.any_size.patch_size, self.any_size.frames
        for shape in dict.fromkeys(image.shape for image in images):
            numbers = [number for number, image in enumerate(images) if image.shape == shape]
            rows, columns = (size // patch_size for size in shape[1:])
            patches = patches_of(torch.stack([images[n] for n in numbers]), patch_size, frames)
            counted = torch.arange(rows * columns, device=patches.device)
            offsets = places_in(columns, counted) - counted[:, None]
            states, of_size = self._states(
                patches, (rows, columns), offsets=offsets[None], return_weights=return_attention
            )
            found |= zip(numbers, zip(*states, strict=True), strict=True)
            maps = {kind: (*maps.get(kind, ()), *one) for kind, one in of_size.items()}
        return [found[number] for number in range(len(images))], maps

    def _states(
        self, patches: torch.Tensor, grid: tuple[int, int], **options: Any
    ) -> tuple[list[torch.Tensor], Maps]:
        """The states that stand in a text for images of one size, whose patches are (batch,
        patches, width) and have these rows and columns, and what is added to them after each of the
        first layers of the decoder: (batch, states of an image, width). And the maps."""
        states, maps = self.image(patches, **options)
        return [self.projector(states, grid)], maps

    def _insert(
        self,
        target: torch.Tensor,
        images: tuple[torch.Tensor, ...],
        read: list[Sequence[torch.Tensor]],
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Inserted]:
        places = places_of(self.image_id, target, mask)
        n_states = [len(states) for states, *_ in read]
        images_of_texts(places.sum(1).tolist(), n_states, self.image_id)
        steps = offsets = None
        if self.places:
            grids = [self.any_size.grid(*image.shape[1:]) for image in images]
            each = [_coordinates(rows, columns, target.device) for rows, columns in grids]
            steps, offsets = (torch.cat(of_images) for of_images in zip(*each, strict=True))
        ids = numbered(target, places, self.vocab)
        states, *deep = (torch.cat(one) for one in zip(*read, strict=True))
        return ids, Inserted(states, steps, offsets, tuple(deep))


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
