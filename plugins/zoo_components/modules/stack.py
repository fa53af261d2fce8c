"""The module of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.position import PositionScheme
from zoo.transformer import check_mask

Maps = dict[str, tuple[torch.Tensor, ...]]


class Stack(nn.Module):
    """Embedding, blocks, final norm."""

    def __init__(
        self,
        *,
        embed: nn.Module,
        layers: Sequence[nn.Module],
        passes: int,
        schemes: Mapping[str, nn.Module],
        scheme_of_layer: Sequence[str | None],
        relative: str | None,
        norm: nn.Module | None,
        d_model: int,
        output_width: int,
        causal: bool,
        pad_id: int | None,
        count_positions: str,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self.passes = passes
        for name, scheme in schemes.items():
            self.add_module(name, scheme)
        self.scheme_of_layer = tuple(scheme_of_layer)
        self.relative = relative
        self.norm = norm
        self.out_proj = (
            nn.Linear(d_model, output_width, bias=False) if output_width != d_model else None
        )
        self.causal = causal
        self.pad_id = pad_id
        self.count_positions = count_positions

    def forward(
        self,
        inputs: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        token_types: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, Maps]:
        """Run the stack.

        Args:
            inputs: ids (batch, length); or without a vocabulary vectors, (batch, length, d_model).
                Vectors and memory without a batch are a batch of one, returned without it.
            memory: what cross-attention attends to, (batch, memory length, memory width).
            mask: for self-attention, boolean, True = attend; the shapes of `check_mask`.
            memory_mask: for cross-attention, likewise.
            token_types: ids of token types, (batch, length); 0 unless given.
            return_weights: also return the attention weights of every layer.

        Returns:
            The states, (batch, length, output_width), and the weights by kind, empty unless asked
            for.
        """
        if inputs.is_floating_point() and inputs.dim() == 2:
            x, maps = self(
                inputs[None],
                None if memory is None else memory[None],
                mask=mask,
                memory_mask=memory_mask,
                token_types=token_types,
                return_weights=return_weights,
            )
            return x[0], {kind: tuple(w[0] for w in weights) for kind, weights in maps.items()}
        positions = self.positions(inputs, mask)
        x = self.embed(inputs, positions, token_types=token_types, mask=mask)
        batch, length = x.shape[:2]
        if mask is not None:
            mask = check_mask(mask, batch=batch, query=length, key=length)
        if memory_mask is not None and memory is not None:
            memory_mask = check_mask(memory_mask, batch=batch, query=length, key=memory.shape[-2])
        shared = LayerContext(
            mask=join(mask, self.padding_mask(inputs)),
            causal=self.causal,
            positions=positions,
            memory=memory,
            memory_mask=memory_mask,
            return_weights=return_weights,
        )
        contexts = {
            name: self.with_scheme(shared, name, positions, x.dtype)
            for name in dict.fromkeys(self.scheme_of_layer)
        }
        found: dict[str, list[torch.Tensor]] = {}
        for _ in range(self.passes):
            for name, layer in zip(self.scheme_of_layer, self.layers, strict=True):
                x, maps = layer(x, contexts[name])
                for kind, weights in maps.items():
                    found.setdefault(kind, []).append(weights)
        if self.norm is not None:
            x = self.norm(x)
        if self.out_proj is not None:
            x = self.out_proj(x)
        return x, {kind: tuple(weights) for kind, weights in found.items()}

    def with_scheme(
        self, context: LayerContext, name: str | None, positions: torch.Tensor, dtype: torch.dtype
    ) -> LayerContext:
        """The context of the layers whose position scheme is the module `name`."""
        rotation = bias = first = None
        for found in (name, self.relative):
            if found is None:
                continue
            scheme = self.get_submodule(found)
            if not isinstance(scheme, PositionScheme):
                raise TypeError(f"{type(scheme).__name__} is not a zoo.position.PositionScheme")
            first = first or scheme
            rotation = rotation or scheme.rotation(positions, dtype)
            added = scheme.bias(positions, positions, dtype)
            bias = added if bias is None or added is None else bias + added
        return context._replace(scheme=first, rotation=rotation, bias=bias)

    def positions(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The position of each token: (length,), or (batch, length) where padding counts."""
        length = inputs.shape[1]
        if self.count_positions == "unpadded":
            counted = inputs != self.pad_id
            return counted.cumsum(1) * counted
        if self.count_positions == "unmasked" and mask is not None and mask.dim() == 2:
            return mask.cumsum(1) * mask - 1
        return torch.arange(length, device=inputs.device)

    def padding_mask(self, ids: torch.Tensor) -> torch.Tensor | None:
        """(batch, 1, 1, length), False at padding; None when the spec names no `pad_id`."""
        if self.pad_id is None or ids.is_floating_point():
            return None
        return (ids != self.pad_id)[:, None, None, :]


def join(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """Both masks at once."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
