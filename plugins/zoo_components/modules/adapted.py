"""Maps with low-rank adapters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from zoo.linear import Linear, together
from zoo_components.modules.attention import MultiHeadAttention
from zoo_components.modules.ffn import Mlp


class Adapter(nn.Module):
    """up(down(x)), through a width of `rank`."""

    def __init__(self, n_in: int, rank: int, n_out: int) -> None:
        super().__init__()
        self.down_proj = Linear(n_in, rank, bias=False)
        self.up_proj = Linear(rank, n_out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., n_in) to (..., n_out)."""
        return self.up_proj(self.down_proj(x))


class AdaptedMultiHeadAttention(MultiHeadAttention):
    """A `MultiHeadAttention` with a low-rank adapter of each map to queries, keys and values, whose
    output is added to that of the map."""

    def add_adapters(self, rank: int) -> None:
        """Give each of these maps its adapter."""
        for name in "q" + self.of_keys:
            proj: Linear = getattr(self, f"{name}_proj")
            adapter = Adapter(proj.in_features, rank, proj.out_features)
            self.add_module(f"{name}_adapter", adapter)

    def _mapped(self, names: Sequence[str], x: torch.Tensor) -> Sequence[torch.Tensor]:
        found = super()._mapped(names, x)
        adapters = [getattr(self, f"{name}_adapter") for name in names]
        return [one + adapter(x) for one, adapter in zip(found, adapters, strict=True)]


class GluAdapter(nn.Module):
    """gate(down(x)) and up(down(x)), through a width of `rank`."""

    def __init__(self, d_model: int, rank: int, d_ff: int) -> None:
        super().__init__()
        self.down_proj = Linear(d_model, rank, bias=False)
        self.gate_proj = Linear(rank, d_ff, bias=False)
        self.up_proj = Linear(rank, d_ff, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(..., d_model) to twice (..., d_ff)."""
        gate, up = together([self.gate_proj, self.up_proj], self.down_proj(x))
        return gate, up


class AdaptedGlu(Mlp):
    """A gated `Mlp` with a low-rank adapter of its maps to the hidden units."""

    gate_proj: Linear

    def add_adapter(self, rank: int) -> None:
        """Give the network its adapter."""
        self.adapter = GluAdapter(self.up_proj.in_features, rank, self.up_proj.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., d_model)."""
        gate, up = together([self.gate_proj, self.up_proj], x)
        more_gate, more_up = self.adapter(x)
        hidden = self.activation(gate + more_gate) * (up + more_up)
        return self.down_proj(self.dropout(self.sub_norm(hidden)))
