"""Differential attention (Ye et al. 2024, arXiv:2410.05258)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import Rotation
from zoo_components.heads import heads_text
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import Norm, put_norm, widen
from zoo_components.modules.scores import Scoring, attend


class DifferentialAttention(nn.Module):
    """(1 - lambda_init) * head_norm((A_1 - lambda A_2) v) for each pair of heads, with the weights
    A_1 and A_2 of its two heads, and an output projection (Ye et al. 2024, arXiv:2410.05258,
    equations 1 to 3)."""

    head_norm: Norm

    def __init__(
        self,
        *,
        d_model: int,
        key_width: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        bias: Collection[str],
        lambda_init: float,
        head_norm: nn.Module,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.lambda_init, self.scoring = lambda_init, scoring
        self.q_proj = Linear(d_model, n_heads * head_dim, bias="q" in bias)
        self.k_proj = Linear(key_width, n_kv_heads * head_dim, bias="k" in bias)
        self.v_proj = Linear(key_width, n_kv_heads * head_dim, bias="v" in bias)
        self.lambda_q1 = nn.Parameter(torch.empty(head_dim))
        self.lambda_k1 = nn.Parameter(torch.empty(head_dim))
        self.lambda_q2 = nn.Parameter(torch.empty(head_dim))
        self.lambda_k2 = nn.Parameter(torch.empty(head_dim))
        put_norm(self, "head_norm", head_norm)
        self.o_proj = Linear(n_heads * head_dim, d_model, bias="o" in bias)

    def extra_repr(self) -> str:
        """The heads and the constant, as `print(model)` shows them."""
        heads = heads_text(self.n_heads, self.n_kv_heads, self.head_dim)
        return f"{heads}, lambda_init={self.lambda_init}"

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
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to `memory`, or to `x` itself.

        Args:
            x: (..., query, d_model).
            memory: (..., key, key_width).
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: rotates queries and keys by their positions, in self-attention.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: not used; `rotation` holds them.
            cache: the keys and values of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights of both heads of each pair, (..., heads, query,
                key), without their difference.

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        q, k, v = self._heads(x, memory, rotation, cache)
        halves = v.chunk(2, -3)
        # With values as wide as queries, fused kernels of more devices can be used.
        at_once = return_weights or (self.training and self.scoring.dropout > 0)
        found = [
            attend(
                q,
                k,
                torch.cat([values, values], -3),  # those of a pair's first head and of its second
                scoring=self.scoring,
                training=self.training,
                mask=mask,
                causal=causal,
                bias=bias,
                return_weights=return_weights,
            )
            for values in ([torch.cat(halves, -1)] if at_once else halves)
        ]
        first, second = torch.cat([mixed for mixed, _ in found], -1).chunk(2, -3)
        normed = self.head_norm(first - self._factor(q.dtype) * second)
        return self.o_proj(merge_heads((1 - self.lambda_init) * normed)), found[0][1]

    def _heads(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None,
        rotation: Rotation | None,
        cache: AttentionCache | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of `x`, and keys and values of `memory` or `x`, each (..., heads, length,
        head_dim); with a cache, the keys and values of all tokens so far. The first half of the
        values is of all pairs, and so is the second."""
        maps = [self.q_proj, self.k_proj, self.v_proj]
        if memory is None:
            q, k, v = self._projected(maps, x)
            if rotation is not None:
                q, k = rotation(q), rotation(k)
            if cache is not None:
                k, v = cache.extend(k, v)
            return q, k, v
        (q,) = self._projected(maps[:1], x)
        made = partial(self._projected, maps[1:], memory)
        k, v = made() if cache is None else cache.of_memory(made)
        return q, k, v

    def _projected(self, maps: Sequence[Linear], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The projections of x by these maps, each (..., heads, length, head_dim)."""
        return tuple(split_heads(one, self.head_dim) for one in together(maps, x))

    def _factor(self, dtype: torch.dtype) -> torch.Tensor:
        """lambda, computed in float32, or in float64 for a float64 model."""
        first = (widen(self.lambda_q1) * widen(self.lambda_k1)).sum().exp()
        second = (widen(self.lambda_q2) * widen(self.lambda_k2)).sum().exp()
        return (first - second + self.lambda_init).to(dtype)
