"""Attention modules."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import nn

from zoo.position import Rotation


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any number of key-value heads (Vaswani et al. 2017)."""

    def __init__(
        self,
        *,
        d_model: int,
        key_width: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        v_head_dim: int,
        d_out: int,
        bias: Collection[str],
        output_projection: bool,
        scale: float,
        dropout: float,
        uniform_masked_rows: bool,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.scale = scale
        self.dropout = dropout
        self.uniform_masked_rows = uniform_masked_rows
        self.q_proj = nn.Linear(d_model, n_heads * head_dim, bias="q" in bias)
        self.k_proj = nn.Linear(key_width, n_kv_heads * head_dim, bias="k" in bias)
        self.v_proj = nn.Linear(key_width, n_kv_heads * v_head_dim, bias="v" in bias)
        self.o_proj: nn.Module = (
            nn.Linear(n_heads * v_head_dim, d_out, bias="o" in bias)
            if output_projection
            else nn.Identity()
        )

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to `memory`, or to `x` itself.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: turns queries and keys by their positions.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_out), and the weights after dropout or None.
        """
        source = x if memory is None else memory
        q = _heads(self.q_proj(x), self.n_heads)
        k = _heads(self.k_proj(source), self.n_kv_heads)
        v = _heads(self.v_proj(source), self.n_kv_heads)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        if self.n_kv_heads != self.n_heads:
            groups = self.n_heads // self.n_kv_heads
            k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
        if mask is not None and causal:
            mask = mask & _causal_mask(q, k)
        if mask is not None and self.uniform_masked_rows:
            dead = ~mask.any(-1, keepdim=True)
            q, mask = q.masked_fill(dead, 0.0), mask | dead
            bias = None if bias is None else torch.where(dead, 0.0, bias)
        if bias is not None or return_weights:
            mixed, weights = self._explicit(q, k, v, mask, causal, bias)
        else:
            mixed, weights = self._fused(q, k, v, mask, causal), None
        return self.o_proj(mixed.transpose(-3, -2).flatten(-2)), weights if return_weights else None

    def _fused(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal and mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )

    def _explicit(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = q @ k.transpose(-1, -2) * self.scale
        if bias is not None:
            scores = scores + bias
        if mask is None and causal:
            mask = _causal_mask(q, k)
        if mask is not None:
            # The lowest finite score keeps a fully masked row free of NaN; its weights become 0.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        weights = F.dropout(weights, self.dropout, self.training)
        return weights @ v, weights


def _heads(x: torch.Tensor, n_heads: int) -> torch.Tensor:
    """(..., length, heads * width) to (..., heads, length, width)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def _causal_mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(query, key), True where the key is not later than the query."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
