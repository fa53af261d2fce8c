"""Disentangled attention of content and position (He et al. 2020, arXiv:2006.03654)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from zoo.linear import Linear
from zoo.position import add_biases
from zoo_components.modules.heads import split_heads
from zoo_components.modules.relative import DisentangledPositions
from zoo_components.modules.self_attention import Common, SelfAttention


class DisentangledAttention(SelfAttention):
    """A `SelfAttention` with scores scale * (q k^T + content to position + position to content)
    (He et al. 2020), of which the `terms` are added that are named.

    `position_biases` maps the names of the separate projections of the distances, `pos_k_proj` and
    `pos_q_proj`, to whether they have a bias; without them, `k_proj` and `q_proj` are used.
    """

    pos_k_proj: Linear
    pos_q_proj: Linear

    def __init__(
        self, common: Common, *, terms: Collection[str], position_biases: Mapping[str, bool]
    ) -> None:
        super().__init__(common)
        self.terms = terms
        self.shares_projections = not position_biases
        for name, has_bias in position_biases.items():
            width = common.n_heads * common.head_dim
            self.add_module(name, Linear(common.d_model, width, bias=has_bias))

    def beside(  # type: ignore[override]  # the scheme whose tables its description reads
        self,
        x: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        *,
        positions: torch.Tensor | None,
        scheme: DisentangledPositions | None,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The queries as they are, and the scores of the distances; without a scheme, none."""
        if scheme is None:
            return q, bias
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        return q, add_biases(bias, self._position_scores(q, k, positions, scheme))

    def _position_scores(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        positions: torch.Tensor,
        scheme: DisentangledPositions,
    ) -> torch.Tensor:
        """Scores of queries and keys with the distance between them, (..., heads, query, key)."""
        vectors = scheme.vectors()
        rows = scheme.rows(positions).unsqueeze(-3).expand(*q.shape[:-1], -1)
        scores = torch.zeros_like(rows, dtype=q.dtype)
        if "content_to_position" in self.terms:
            proj = self.k_proj if self.shares_projections else self.pos_k_proj
            scores = scores + _matched(q, proj(vectors)).gather(-1, rows)
        if "position_to_content" in self.terms:
            proj = self.q_proj if self.shares_projections else self.pos_q_proj
            # The published weights are trained with the distance from query to key here too; the
            # paper writes it the other way round.
            matched = _matched(k, proj(vectors)).gather(-1, rows.transpose(-1, -2))
            scores = scores + matched.transpose(-1, -2)
        return scores * self.scoring.scale


def _matched(heads: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Products of heads (..., heads, length, width) with projected vectors (rows, heads * width):
    (..., heads, length, rows)."""
    return heads @ split_heads(vectors, heads.shape[-1]).transpose(-1, -2)
