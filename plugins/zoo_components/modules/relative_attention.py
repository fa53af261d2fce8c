"""Attention in which queries are matched with their distances to the keys."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear
from zoo.position import PositionScheme, add_biases
from zoo_components.modules.heads import split_heads
from zoo_components.modules.position import sinusoids
from zoo_components.modules.self_attention import Common, SelfAttention


class RelativeAttention(SelfAttention):
    """A `SelfAttention` with scores ((q + content_bias) k^T + (q + position_bias)
    (distance_proj(r))^T) / sqrt(head_dim), where r are the sinusoids of the distances (Dai et al.
    2019, section 3.3)."""

    def __init__(self, common: Common, *, base: float) -> None:
        super().__init__(common)
        self.base = base
        self.distance_proj = Linear(common.d_model, common.d_model, bias=False)
        self.content_bias = nn.Parameter(torch.empty(common.n_heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.empty(common.n_heads, self.head_dim))

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
        """The queries with their learned vectors, and the scores of the distances."""
        length, width = x.shape[-2:]
        # Padding may be at -1, and no two positions are farther apart than the sequence is long.
        distances = torch.arange(-length, length + 1, device=x.device)
        table = sinusoids(
            distances, width, base=self.base, interleaved=True, half_minus_one=False
        ).to(x.dtype)
        vectors = split_heads(self.distance_proj(table), self.head_dim)
        by_distance = (q + self.position_bias[:, None]) @ vectors.transpose(-1, -2)
        rows = _distances(x, positions) + length
        scores = by_distance.gather(-1, _of_each_head(rows, q)) * self.scoring.scale
        return q + self.content_bias[:, None], add_biases(scores, bias)


class RelativeKeysAttention(SelfAttention):
    """A `SelfAttention` with scores q (k + distances[i])^T / sqrt(head_dim), where `distances` has
    a row for each distance of query and key (Shaw et al. 2018)."""

    def __init__(self, common: Common, *, max_before: int, max_after: int) -> None:
        super().__init__(common)
        self.max_before, self.max_after = max_before, max_after
        self.distances = nn.Embedding(max_before + max_after + 1, self.head_dim)

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
        """The queries as they are, and the scores of the distances."""
        by_distance = q @ self.distances.weight.T
        # The first row is that of the keys farthest before the query.
        behind = (-_distances(x, positions)).clamp(-self.max_before, self.max_after)
        scores = by_distance.gather(-1, _of_each_head(behind + self.max_before, q))
        return q, add_biases(scores * self.scoring.scale, bias)


def _distances(x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """The position of each query less that of each key, (..., query, key)."""
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    return positions[..., :, None] - positions[..., None, :]


def _of_each_head(rows: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Rows (..., query, key) for the heads of q (..., heads, query, width), without copies."""
    return rows.unsqueeze(-3).expand(*q.shape[:-1], -1)
