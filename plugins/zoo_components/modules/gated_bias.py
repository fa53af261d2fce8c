"""Attention with a gated bias of positions (Chi et al. 2021, arXiv:2106.16138)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo_components.modules.heads import split_heads
from zoo_components.modules.self_attention import Common, SelfAttention


class GatedBiasAttention(SelfAttention):
    """A `SelfAttention` whose bias is multiplied by `gates` of x, g: head_i =
    softmax(scale * q_i k_i^T + g_i * bias_i) v_i (Chi et al. 2021, arXiv:2106.16138)."""

    def __init__(self, common: Common, *, gate_outputs: int) -> None:
        super().__init__(common)
        self.gate_proj = Linear(self.head_dim, gate_outputs)
        self.gate_scale = nn.Parameter(torch.empty(common.n_heads))

    def beside(
        self,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        *,
        positions: torch.Tensor | None,
        scheme: PositionScheme | None,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The queries as they are, and the bias multiplied by the gates."""
        return q, None if bias is None else self.gates(x) * bias

    def gates(self, x: torch.Tensor) -> torch.Tensor:
        """What multiplies the bias at each query, 2 + update * (reset * gate_scale - 1): x (...,
        query, d_model) to (..., heads, query, 1)."""
        sums = self.gate_proj(split_heads(x, self.head_dim)).unflatten(-1, (2, -1)).sum(-1)
        update, reset = sums.sigmoid().split(1, -1)
        return update * (reset * self.gate_scale[:, None, None] - 1.0) + 2.0
