"""A decoder in whose text states stand that another stack has made, of images or of sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from zoo.cache import Cache
from zoo.inputs.in_texts import media_of_texts
from zoo.slots import Head
from zoo_components.modules.builders import Output, WithDecoder, maps_of
from zoo_components.modules.padding import by_token
from zoo_components.modules.stack import Maps, Stack


class Read(NamedTuple):
    """What stands in a text for an image or a sound.

    Args:
        states: (states, width of the vectors of tokens).
        grid: the numbers of rows and of columns of these, where positions tell them apart.
        deep: what is added to them after each of the first layers of the decoder, (states,
            d_model).
    """

    states: torch.Tensor
    grid: tuple[int, int] | None = None
    deep: tuple[torch.Tensor, ...] = ()


class InsertingDecoder(WithDecoder):
    """model(target, media) = head(decode(target with the states of the media in it)), where media
    are images or sounds.

    A state is called for as a token is, by a number: those from the size of the vocabulary on are
    rows of a table of states. So what follows a text, such as its beams, needs nothing but its ids.

    Args:
        reader: the stack that reads the media, a submodule of the name `medium`.
        projector: the map from its states to the width of the vectors of tokens.
        decoder: the stack that reads the text.
        head: the head.
        vocab: the number of tokens.
        inserted_id: the id of the token at whose places states stand.
    """

    medium: ClassVar[str]
    """What the states are made of: `image` or `sound`."""

    def __init__(
        self,
        *,
        reader: Stack,
        projector: nn.Module,
        decoder: Stack,
        head: Head,
        vocab: int,
        inserted_id: int,
    ) -> None:
        super().__init__()
        self.add_module(self.medium, reader)
        self.projector = projector
        self.decoder = decoder
        self.add_head(head)
        self.vocab, self.inserted_id = vocab, inserted_id

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inserted: Any = None,
        prompt: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """The decoder's states, (batch, target length, d_model), and its maps if asked for.

        `target` and `inserted` are what `insert_images` or `insert_sounds` returns, or ids alone;
        there is no memory. With a `cache`, `target` and `target_mask` are those of the next tokens.
        `prompt` is as in `ImageTextDecoder.forward`.
        """
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=memory_mask,
            cache=cache,
            return_weights=return_attention,
            **self._taken(target, inserted, prompt),
        )
        return (states, maps_of(decoder=maps)) if return_attention else states

    def _scored(
        self,
        target: torch.Tensor,
        media: Any,
        *,
        target_mask: torch.Tensor | None,
        return_attention: bool,
        prompt: torch.Tensor | None = None,
    ) -> Output:
        """The output of `forward`, of texts with these images or sounds in them, if there are
        any."""
        ids, inserted = target, None
        of_media: Maps = {}
        if media is not None:
            read, of_media = self._read(media, return_attention=return_attention)
            ids, inserted = self._insert(target, read, target_mask)
        states, maps = self.decoder(
            ids,
            mask=target_mask,
            return_weights=return_attention,
            **self._taken(ids, inserted, prompt),
        )
        output = self.head_output(states, self.decoder, target, target_mask)
        return (output, maps_of(encoder=of_media, decoder=maps)) if return_attention else output

    def _read(self, media: Any, *, return_attention: bool) -> tuple[Sequence[Read], Maps]:
        """What stands in a text for each image or sound, and the attention maps of the stack that
        reads them."""
        raise NotImplementedError

    def _joined(self, read: Sequence[Read]) -> Any:
        """What `decode` takes as `inserted`: the states, (n, width)."""
        return torch.cat([one.states for one in read])

    def _taken(
        self, target: torch.Tensor, inserted: Any, prompt: torch.Tensor | None
    ) -> dict[str, Any]:
        """What the decoder takes of a text beside its ids. Arguments are those of `decode`."""
        return {} if inserted is None else {"inserted": inserted}

    def _inserting(
        self, target: torch.Tensor, media: Any, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """The ids of a text with these images or sounds in it, and what `decode` takes as
        `inserted`."""
        return self._insert(target, self._read(media, return_attention=False)[0], mask)

    def _insert(
        self, target: torch.Tensor, read: Sequence[Read], mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """Ids (batch, length), with the numbers of the rows of states at the places of
        `inserted_id`, but in padding, counted from the size of the vocabulary; and what `decode`
        takes as `inserted`."""
        places, real = target == self.inserted_id, by_token(mask)
        if real is not None:
            places = places & real
        n_states = [len(one.states) for one in read]
        media_of_texts(places.sum(1).tolist(), n_states, self.inserted_id, self.medium)
        numbers = places.flatten().cumsum(0).view(target.shape) - 1 + self.vocab
        return torch.where(places, numbers, target), self._joined(read)
