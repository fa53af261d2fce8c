"""A decoder whose text has images in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from zoo.cache import Cache
from zoo.image_inputs import images_of_texts
from zoo.linear import Linear, activated
from zoo.slots import Head
from zoo.transformer import Pixels
from zoo_components.modules.builders import Output, WithDecoder, maps_of
from zoo_components.modules.padding import by_token
from zoo_components.modules.stack import Maps, Stack


class Merging(NamedTuple):
    """How the states of patches become fewer.

    Args:
        side: the side of the squares of patches that become one state.
        mean: whether that is their mean, and not all of them as one vector, row by row.
        grid: the number of rows and of columns of patches; None if images differ in them.
    """

    side: int
    mean: bool
    grid: tuple[int, int] | None

    def __call__(self, x: torch.Tensor, grid: tuple[int, int] | None) -> torch.Tensor:
        """(n, rows * columns, width) to (n, squares, width), or width * side**2 without `mean`.
        `grid` are the rows and columns of these images, if they differ."""
        grid = self.grid or grid
        assert grid is not None  # of images of one size or of this one
        n, _, width = x.shape
        rows, columns = (size // self.side for size in grid)
        shape = (n, rows, self.side, columns, self.side, width)
        squares = x.reshape(shape).transpose(2, 3).flatten(1, 2)
        return squares.mean((2, 3)) if self.mean else squares.flatten(2)


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


class ImageTextDecoder(WithDecoder):
    """model(target, images) = head(decode(target with the states of images in it)).

    A state of an image is called for as a token is, by a number: those from the size of the
    vocabulary on are rows of a table of states. So what follows a text, such as its beams, needs
    nothing but its ids.
    """

    def __init__(
        self,
        *,
        image: Stack,
        projector: nn.Module,
        decoder: Stack,
        head: Head,
        vocab: int,
        image_id: int,
        n_states: int,
        n_before: int,
        bidirectional: Literal["none", "image", "prompt"],
    ) -> None:
        super().__init__()
        self.image, self.projector = image, projector
        self.decoder = decoder
        self.add_head(head)
        self.vocab, self.image_id, self.n_before = vocab, image_id, n_before
        self.n_states, self.bidirectional = n_states, bidirectional

    def read_images(self, images: Pixels) -> torch.Tensor | Sequence[torch.Tensor]:
        """The states that stand in a text for images (n_images, channels, height, width):
        (n_images, states of an image, width of the vectors of tokens)."""
        return self._read(images, return_attention=False)[0]

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
        return self._insert(target, self._read(images, return_attention=False)[0], target_mask)

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inserted: torch.Tensor | None = None,
        prompt: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """The decoder's states, (batch, target length, d_model), and its maps if asked for.

        `target` and `inserted` are what `insert_images` returns, or ids alone; there is no memory.
        With a `cache`, `target` and `target_mask` are those of the next tokens. `prompt` is as in
        `forward`.
        """
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=memory_mask,
            cache=cache,
            inserted=inserted,
            blocks=self._blocks(target, inserted, prompt),
            return_weights=return_attention,
        )
        return (states, maps_of(decoder=maps)) if return_attention else states

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
            target_mask: as in `EncoderDecoder.forward`.
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
        ids, inserted = target, None
        of_images: Maps = {}
        if images is not None:
            read, of_images = self._read(images, return_attention=return_attention)
            ids, inserted = self._insert(target, read, target_mask)
        states, maps = self.decoder(
            ids,
            mask=target_mask,
            inserted=inserted,
            blocks=self._blocks(ids, inserted, prompt),
            return_weights=return_attention,
        )
        output = self.head_output(states, self.decoder, target, target_mask)
        return (output, maps_of(encoder=of_images, decoder=maps)) if return_attention else output

    def _blocks(
        self, target: torch.Tensor, inserted: torch.Tensor | None, prompt: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The tokens that attend to each other in both directions, as a stack takes them."""
        if prompt is not None:
            if self.bidirectional != "prompt":
                raise ValueError('a `prompt` is for a spec that says `bidirectional = "prompt"`')
            return prompt.long() - 1
        if inserted is None or self.bidirectional != "image":
            return None
        # The states of an image have consecutive numbers; those of tokens are negative.
        return (target - self.vocab).div(self.n_states, rounding_mode="floor")

    def _read(
        self, images: Pixels, *, return_attention: bool
    ) -> tuple[torch.Tensor | Sequence[torch.Tensor], Maps]:
        """The states of each image that stand in a text, (states of the image, width), and the
        maps."""
        states, maps = self.image(images, return_weights=return_attention)
        return self.projector(states[:, self.n_before :]), maps

    def _insert(
        self,
        target: torch.Tensor,
        states: torch.Tensor | Sequence[torch.Tensor],
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = places_of(self.image_id, target, mask)
        images_of_texts(places.sum(1).tolist(), [len(one) for one in states], self.image_id)
        flat = states.flatten(0, 1) if isinstance(states, torch.Tensor) else torch.cat([*states])
        return numbered(target, places, self.vocab), flat


def places_of(image_id: int, target: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Where states of images stand in texts, boolean, (batch, length): where the token `image_id`
    does, but in padding."""
    places, real = target == image_id, by_token(mask)
    return places if real is None else places & real


def numbered(target: torch.Tensor, places: torch.Tensor, vocab: int) -> torch.Tensor:
    """The ids of texts, (batch, length), with the numbers of the rows of the states in these
    places, in their order, counted from the size of the vocabulary."""
    numbers = places.flatten().cumsum(0).view(target.shape) - 1 + vocab
    return torch.where(places, numbers, target)
