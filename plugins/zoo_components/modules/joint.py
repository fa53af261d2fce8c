"""Heads of encoders that share a space of texts and images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from zoo.linear import Linear, together
from zoo_components.modules.classifier import pool, state_at
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.scores import Scoring, attend


class JointEmbedding(nn.Module):
    """normalize(proj(hidden_proj(norm(pool(x))))) (CLIP: Radford et al. 2021, arXiv:2103.00020);
    each map may be None."""

    def __init__(
        self,
        *,
        pooling: str,
        end_id: int | None,
        norm: nn.Module,
        hidden_proj: nn.Module | None,
        proj: nn.Module | None,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.pooling, self.end_id = pooling, end_id
        self.norm = norm
        self.hidden_proj = hidden_proj
        self.proj = proj
        self.normalize = normalize

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(..., length, d_model) to (..., d_out). `mask`, boolean, False = padding, (..., length),
        matters to a mean alone. `ids` (..., length) are those of the tokens, for the poolings that
        look for the end of a text.

        Raises:
            ValueError: the pooling goes by ids, and there are none.
        """
        x = self.norm(self.pool(x, mask, ids))
        if self.hidden_proj is not None:
            x = self.hidden_proj(x)
        if self.proj is not None:
            x = self.proj(x)
        return F.normalize(x, dim=-1) if self.normalize else x

    def pool(
        self, x: torch.Tensor, mask: torch.Tensor | None, ids: torch.Tensor | None
    ) -> torch.Tensor:
        """(..., length, d_model) to (..., d_model). Raises as `forward`."""
        if self.pooling in ("first", "mean_after_first"):
            return pool(x, self.pooling, mask)
        if self.pooling == "last_position":
            return x[..., -1, :]
        if ids is None:
            raise ValueError(
                f"pooling = {self.pooling} goes by the tokens: call this head with `ids` too, "
                "(batch, length)"
            )
        found = ids if self.end_id is None else (ids == self.end_id).int()
        return state_at(x, found.argmax(-1))  # of equal ones, the first


class AttentionPooling(nn.Module):
    """normalize(y + ffn(norm(y))) with y = attn(query, x, x), for one learned query (Zhai et al.
    2021, arXiv:2106.04560)."""

    def __init__(
        self, *, d_model: int, attn: nn.Module, norm: nn.Module, ffn: nn.Module, normalize: bool
    ) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(d_model))
        self.attn = attn
        self.norm = norm
        self.ffn = ffn
        self.normalize = normalize

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., d_model); `mask`, boolean, False = padding, (...,
        length), hides states from the query."""
        query = self.query.expand(*x.shape[:-2], 1, -1)
        seen = None if mask is None else mask[..., None, None, :]
        y, _ = self.attn(query, x, mask=seen)
        y = (y + self.ffn(self.norm(y))).squeeze(-2)
        return F.normalize(y, dim=-1) if self.normalize else y


class QueryPooling(nn.Module):
    """normalize(out(attend(query, k(x), v(x)))) for one learned query, with several heads."""

    def __init__(self, *, d_model: int, n_heads: int, bias: bool, normalize: bool) -> None:
        super().__init__()
        self.head_dim = d_model // n_heads
        self.scoring = Scoring(scale=self.head_dim**-0.5)
        self.query = nn.Parameter(torch.empty(d_model))
        self.k_proj = Linear(d_model, d_model, bias=bias)
        self.v_proj = Linear(d_model, d_model, bias=bias)
        self.out = Linear(d_model, d_model)
        self.normalize = normalize

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., d_model); `mask`, boolean, False = padding, (...,
        length), hides states from the query."""
        query = self.query.expand(*x.shape[:-2], 1, -1)
        made = (query, *together([self.k_proj, self.v_proj], x))
        q, k, v = (split_heads(one, self.head_dim) for one in made)
        seen = None if mask is None else mask[..., None, None, :]
        y, _ = attend(q, k, v, scoring=self.scoring, training=self.training, mask=seen)
        y = self.out(merge_heads(y).squeeze(-2))
        return F.normalize(y, dim=-1) if self.normalize else y
