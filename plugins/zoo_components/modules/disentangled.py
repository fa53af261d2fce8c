"""Disentangled attention of content and position (He et al. 2020, arXiv:2006.03654)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn

from zoo.linear import Linear
from zoo.position import Rotation
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.relative import DisentangledPositions
from zoo_components.modules.scores import Scoring, attend


class DisentangledAttention(nn.Module):
    """softmax(scale * (q k^T + content to position + position to content)) v (He et al. 2020).

    `position_biases` maps the names of the separate projections of the distances, `pos_k_proj` and
    `pos_q_proj`, to whether they have a bias; without them, `k_proj` and `q_proj` are used.
    """

    pos_k_proj: Linear
    pos_q_proj: Linear

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        bias: Collection[str],
        content_to_position: bool,
        position_to_content: bool,
        position_biases: Mapping[str, bool],
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.content_to_position = content_to_position
        self.position_to_content = position_to_content
        self.scoring = scoring
        width = n_heads * head_dim
        self.q_proj = Linear(d_model, width, bias="q" in bias)
        self.k_proj = Linear(d_model, width, bias="k" in bias)
        self.v_proj = Linear(d_model, width, bias="v" in bias)
        self.shares_projections = not position_biases
        for name, has_bias in position_biases.items():
            self.add_module(name, Linear(d_model, width, bias=has_bias))
        self.o_proj = Linear(width, d_model, bias="o" in bias)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        scheme: DisentangledPositions | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to itself.

        Args:
            x: (..., length, d_model).
            memory: None; there are no distances to another sequence.
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: rotates queries and keys by their positions, after their scores with the
                distances are computed.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: (length,) or (..., length); by default 0, 1, ....
            scheme: holds the vectors of the distances; without it, their terms are left out.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., length, d_model), and the weights after dropout or None.
        """
        q, k, v = (
            split_heads(proj(x), self.head_dim) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if scheme is not None:
            if positions is None:
                positions = torch.arange(x.shape[-2], device=x.device)
            scores = self._position_scores(q, k, positions, scheme)
            bias = scores if bias is None else bias + scores
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        mixed, weights = attend(
            q,
            k,
            v,
            scoring=self.scoring,
            training=self.training,
            mask=mask,
            causal=causal,
            bias=bias,
            return_weights=return_weights,
        )
        return self.o_proj(merge_heads(mixed)), weights

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
        if self.content_to_position:
            proj = self.k_proj if self.shares_projections else self.pos_k_proj
            scores = scores + _matched(q, proj(vectors)).gather(-1, rows)
        if self.position_to_content:
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
