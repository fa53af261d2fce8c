"""Whole Transformers: encoder, decoder and encoder-decoder models with a head."""

from __future__ import annotations

import torch
from torch import nn

from zoo.cache import Cache
from zoo.linear import Linear
from zoo.slots import Head
from zoo.transformer import AttentionMaps, Transformer, expand_mask
from zoo_components.modules.masks import join
from zoo_components.modules.stack import Maps, Stack

Output = torch.Tensor | tuple[torch.Tensor, AttentionMaps]


class WithHead(Transformer):
    """A Transformer with a head."""

    head: nn.Module
    """The head, applied to the states."""
    head_pools: bool
    """Whether the head returns one output for a whole sequence, for which it needs the padding."""
    head_takes_ids: bool
    """Whether for that it also needs the ids."""

    def add_head(self, head: Head) -> None:
        """Build the head that is described."""
        self.head, self.head_pools, self.head_takes_ids = head.build(), head.pools, head.takes_ids

    def head_output(
        self,
        states: torch.Tensor,
        stack: Stack,
        inputs: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The output of the head for the states that `stack` computed from these inputs and
        mask."""
        if not self.head_pools:
            return self.head(states)
        ids = {"ids": inputs} if self.head_takes_ids else {}
        return self.head(states, mask=stack.padding.token_mask(inputs, mask), **ids)


class WithEncoder(WithHead):
    """A Transformer with an encoder."""

    encoder: Stack

    def encode(
        self,
        source: torch.Tensor,
        *,
        source_mask: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
        global_tokens: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """The encoder's states, (batch, source length, d_model), and its maps if asked for."""
        states, maps = self.encoder(
            source,
            mask=source_mask,
            token_types=token_types,
            global_tokens=global_tokens,
            return_weights=return_attention,
        )
        return (states, maps_of(encoder=maps)) if return_attention else states


class WithDecoder(WithHead):
    """A Transformer with a decoder."""

    decoder: Stack

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        return_attention: bool = False,
    ) -> Output:
        """The decoder's states, (batch, target length, d_model), and its maps if asked for.

        `memory` is what cross-attention attends to, such as the states that `encode` returned;
        `memory_mask` says which of its positions may be attended to, padding included. With a
        `cache`, `target` and `target_mask` are those of the next tokens.
        """
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=memory_mask,
            cache=cache,
            return_weights=return_attention,
        )
        return (states, maps_of(decoder=maps)) if return_attention else states


class EncoderDecoder(WithEncoder, WithDecoder):
    """model(source, target) = head(decode(target, encode(source)))."""

    def __init__(self, *, encoder: Stack, decoder: Stack, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.add_head(head)

    def memory_mask(
        self, source: torch.Tensor, source_mask: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Which source positions the decoder may attend to: `decode`'s `memory_mask`."""
        return join(expand_mask(source_mask), self.encoder.padding.attention_mask(source))

    def forward(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        source_mask: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
        global_tokens: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Score the target, given the source.

        Args:
            source: ids (batch, source length), or vectors or images without a vocabulary.
            target: ids (batch, target length).
            source_mask: which source positions may be attended to, in the encoder and from the
                decoder; boolean, True = attend, in a shape of `zoo.transformer.check_mask`. One
                with a row for each query has to fit both.
            target_mask: the same for the decoder's self-attention; it is joined with the causal
                mask. Padding is hidden without a mask when the spec names a `pad_id`.
            token_types: the type of each source token, (batch, source length); 0 unless given.
            global_tokens: which source tokens see all and are seen by all, boolean, (batch, source
                length); only for an encoder whose attention states `global_tokens`.
            return_attention: also return the attention maps.

        Returns:
            The head's output, (batch, target length, target vocabulary), and the `AttentionMaps`
            of every layer and kind if asked for.
        """
        memory, encoder_maps = self.encoder(
            source,
            mask=source_mask,
            token_types=token_types,
            global_tokens=global_tokens,
            return_weights=return_attention,
        )
        self._check_rows(source_mask, target)
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=self.memory_mask(source, source_mask),
            return_weights=return_attention,
        )
        output = self.head_output(states, self.decoder, target, target_mask)
        return (output, maps_of(encoder=encoder_maps, decoder=maps)) if return_attention else output

    def _check_rows(self, mask: torch.Tensor | None, target: torch.Tensor) -> None:
        """Raise ValueError for a source mask with a row for each source position, which does not
        fit cross-attention."""
        full = expand_mask(mask)
        if mask is None or full is None or full.shape[2] == 1:
            return
        vectors = target.is_floating_point() and target.dim() == 2
        n_targets = self.decoder.length(target[None] if vectors else target)
        if full.shape[2] != n_targets:
            raise ValueError(
                f"a source_mask of shape {tuple(mask.shape)} has a row for each of "
                f"{full.shape[2]} source positions, and cross-attention asks from {n_targets} "
                "target positions: pass (batch, source length), or call `encode` with this mask "
                "and `decode` with a `memory_mask`"
            )


class Encoder(WithEncoder):
    """model(source) = head(encode(source)).

    With a `pooler`, `model.pooler(states)` pools the states that `encode` returns, and `model.nsp`,
    if the spec asks for it, maps its output to the scores of two classes, (batch, 2).
    """

    def __init__(
        self,
        *,
        encoder: Stack,
        head: Head,
        pooler: nn.Module | None,
        width: int,
        nsp: bool,
        grid: tuple[int, int, int] | None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.add_head(head)
        self.has_class_token = grid is not None and grid[0] > 0
        self.pooler = pooler
        self.nsp = Linear(width, 2) if nsp else None

    def forward(
        self,
        source: torch.Tensor,
        *,
        source_mask: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
        global_tokens: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Encode the source, ids (batch, length), vectors or images, and apply the head.

        `source_mask`, `token_types`, `global_tokens` and `return_attention` are as in
        `EncoderDecoder.forward`.
        """
        states, maps = self.encoder(
            source,
            mask=source_mask,
            token_types=token_types,
            global_tokens=global_tokens,
            return_weights=return_attention,
        )
        output = self.head_output(states, self.encoder, source, source_mask)
        return (output, maps_of(encoder=maps)) if return_attention else output

    def encode_image(self, image: torch.Tensor) -> torch.Tensor:
        """The vector of each image, (batch, width), of images (batch, channels, height, width):
        what a head that pools makes of it, or else the pooler. Without these, it is the state of
        the class token, which comes first, or without one the mean state of the patches."""
        return self._vectors(image)

    def encode_sound(self, sound: torch.Tensor) -> torch.Tensor:
        """The vector of each sound, (batch, width), of waveforms (batch, samples, 1) or
        spectrograms (batch, frames, bands): what a head that pools makes of it, or else the pooler,
        or without these the mean of the states."""
        return self._vectors(sound)

    def _vectors(self, inputs: torch.Tensor) -> torch.Tensor:
        states, _ = self.encoder(inputs)
        if self.pooler is not None and not self.head_pools:
            return self.pooler(states)
        output = self.head_output(states, self.encoder, inputs, None)
        if self.head_pools:
            return output
        return output[:, 0] if self.has_class_token else output.mean(1)


class Decoder(WithDecoder):
    """model(target) = head(decode(target)), with or without an external memory."""

    def __init__(self, *, decoder: Stack, head: Head) -> None:
        super().__init__()
        self.decoder = decoder
        self.add_head(head)

    def forward(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        target_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        return_attention: bool = False,
    ) -> Output:
        """Score the next token of each position of the target, ids (batch, length).

        Args:
            target: ids (batch, length), or vectors without a vocabulary, batched or not.
            memory: (batch, memory length, memory_width), if the spec states a `memory_width`.
            target_mask: which positions may be attended to; boolean, True = attend, (batch, length)
                or another shape of `zoo.transformer.check_mask`. It is joined with the causal mask.
                Padding is hidden without a mask when the spec names a `pad_id`.
            memory_mask: which of the memory may be attended to, boolean, (batch, memory length) or
                another of these shapes.
            return_attention: also return the attention maps.

        Returns:
            The head's output, (batch, length, vocabulary), and the `AttentionMaps` of every layer
            if asked for.
        """
        states, maps = self.decoder(
            target,
            memory,
            mask=target_mask,
            memory_mask=memory_mask,
            return_weights=return_attention,
        )
        output = self.head_output(states, self.decoder, target, target_mask)
        return (output, maps_of(decoder=maps)) if return_attention else output


def maps_of(*, encoder: Maps | None = None, decoder: Maps | None = None) -> AttentionMaps:
    """The attention maps that a model returns, of those of its stacks."""
    encoder, decoder = encoder or {}, decoder or {}
    return AttentionMaps(
        encoder.get("self_attn", ()), decoder.get("self_attn", ()), decoder.get("cross_attn", ())
    )
