"""The module of a stack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from zoo.context import LayerContext
from zoo.transformer import check_mask

Maps = dict[str, tuple[torch.Tensor, ...]]


class Stack(nn.Module):
    """Embedding, blocks, final norm."""

    def __init__(
        self,
        *,
        embed: nn.Module,
        layers: Sequence[nn.Module],
        norm: nn.Module | None,
        scheme: tuple[str, nn.Module] | None,
        causal: bool,
        pad_id: int | None,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.scheme_name = None
        if scheme is not None:
            self.scheme_name, module = scheme
            self.add_module(self.scheme_name, module)
        self.causal = causal
        self.pad_id = pad_id

    def forward(
        self,
        inputs: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, Maps]:
        """Run the stack.

        Args:
            inputs: ids (batch, length), or vectors (batch, length, d_model) without a vocabulary.
            memory: what cross-attention attends to, (batch, memory length, memory width).
            mask: for self-attention, boolean, True = attend; the shapes of `check_mask`.
            memory_mask: for cross-attention, likewise.
            return_weights: also return the attention weights of every layer.

        Returns:
            The states, (batch, length, d_model), and the weights by kind, empty unless asked for.
        """
        batch, length = inputs.shape[:2]
        positions = torch.arange(length, device=inputs.device)
        x = self.embed(inputs, positions)
        rotation = bias = None
        if self.scheme_name is not None:
            scheme = self.get_submodule(self.scheme_name)
            rotation = scheme.rotation(positions, x.dtype)
            bias = scheme.bias(positions, positions)
        if mask is not None:
            mask = check_mask(mask, batch=batch, query=length, key=length)
        if memory_mask is not None and memory is not None:
            memory_mask = check_mask(memory_mask, batch=batch, query=length, key=memory.shape[-2])
        context = LayerContext(
            join(mask, self.padding_mask(inputs)),
            self.causal,
            rotation,
            bias,
            memory,
            memory_mask,
            return_weights,
        )
        found: list[dict[str, torch.Tensor]] = []
        for layer in self.layers:
            x, maps = layer(x, context)
            found.append(maps)
        if self.norm is not None:
            x = self.norm(x)
        kinds = found[0] if found else {}
        return x, {kind: tuple(maps[kind] for maps in found) for kind in kinds}

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
