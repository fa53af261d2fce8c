"""Attention with a gated bias of positions (Chi et al. 2021, arXiv:2106.16138)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import PositionScheme, Rotation
from zoo_components.heads import heads_text
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.scores import Scoring, attend


class GatedBiasAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)) with head_i = softmax(scale * q_i k_i^T + g_i * bias_i)
    v_i, where g is `gates` of x (Chi et al. 2021, arXiv:2106.16138)."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        bias: Collection[str],
        gate_outputs: int,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.scoring = scoring
        self.q_proj = Linear(d_model, d_model, bias="q" in bias)
        self.k_proj = Linear(d_model, d_model, bias="k" in bias)
        self.v_proj = Linear(d_model, d_model, bias="v" in bias)
        self.gate_proj = Linear(self.head_dim, gate_outputs)
        self.gate_scale = nn.Parameter(torch.empty(n_heads))
        self.o_proj = Linear(d_model, d_model, bias="o" in bias)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `8 heads of 64`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

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
        scheme: PositionScheme | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to itself.

        Args:
            x: (..., query, d_model).
            memory: not used: the description refuses one.
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: a query attends to no later key; joined with `mask`.
            rotation: rotates queries and keys by their positions.
            bias: added to the scores after it is multiplied by the gates of its query; broadcasts
                to (..., heads, query, key).
            positions: not used; `bias` holds what they say.
            scheme: not used: `bias` is what it makes.
            cache: the keys and values of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        maps = [self.q_proj, self.k_proj, self.v_proj]
        q, k, v = (split_heads(one, self.head_dim) for one in together(maps, x))
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed, weights = attend(
            q,
            k,
            v,
            scoring=self.scoring,
            training=self.training,
            mask=mask,
            causal=causal,
            bias=None if bias is None else self.gates(x) * bias,
            return_weights=return_weights,
        )
        return self.o_proj(merge_heads(mixed)), weights

    def gates(self, x: torch.Tensor) -> torch.Tensor:
        """What multiplies the bias at each query, 2 + update * (reset * gate_scale - 1): x (...,
        query, d_model) to (..., heads, query, 1)."""
        sums = self.gate_proj(split_heads(x, self.head_dim)).unflatten(-1, (2, -1)).sum(-1)
        update, reset = sums.sigmoid().split(1, -1)
        return update * (reset * self.gate_scale[:, None, None] - 1.0) + 2.0
