"""Attention with forget gates (Lin et al. 2025, arXiv:2503.02130)."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import Rotation, add_biases
from zoo.sharding.parts import all_parts, own_part
from zoo_components.heads import heads_text
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen
from zoo_components.modules.scores import Scoring, attend


class ForgettingAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)) with head_i = softmax(scale * q_i k_i^T + D_i) v_i, where
    D is `log_decay` of the gates of a head (Lin et al. 2025, arXiv:2503.02130, section
    3)."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        bias: Collection[str],
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.scoring = scoring
        self.q_proj = Linear(d_model, n_heads * head_dim, bias="q" in bias)
        self.k_proj = Linear(d_model, n_kv_heads * head_dim, bias="k" in bias)
        self.v_proj = Linear(d_model, n_kv_heads * head_dim, bias="v" in bias)
        self.forget_proj = Linear(d_model, n_heads)
        self.o_proj = Linear(n_heads * head_dim, d_model, bias="o" in bias)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `32 over 8 heads of 128`."""
        return heads_text(self.n_heads, self.n_kv_heads, self.head_dim)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = True,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from each token to itself and those before it.

        Args:
            x: (..., query, d_model).
            memory: not used: the description refuses one.
            mask: boolean, True = attend; broadcasts to (..., heads, query, key).
            causal: not used: the description refuses a stack that is not causal.
            rotation: rotates queries and keys by their positions.
            bias: added to the scores; broadcasts to (..., heads, query, key).
            positions: not used; `rotation` holds them.
            cache: the keys, values and gates of the earlier tokens; `x` are the next ones.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        mask, bias = own_part(mask, -3, self.q_proj), own_part(bias, -3, self.q_proj)
        maps = [self.q_proj, self.k_proj, self.v_proj, self.forget_proj]
        *of_heads, gates = together(maps, x)
        q, k, v = (split_heads(one, self.head_dim) for one in of_heads)
        gates = split_heads(gates, 1)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        n_queries = q.shape[-2]
        if cache is None:
            at = torch.arange(n_queries, device=x.device)
        else:
            k, v, gates = cache.extend(k, v, gates)
            at = cache.places(n_queries, k.shape[-2])
        mixed, weights = attend(
            q,
            k,
            v,
            scoring=self.scoring,
            training=self.training,
            mask=mask,
            causal=True,
            bias=add_biases(bias, log_decay(gates[..., 0], mask, at)),
            return_weights=return_weights,
        )
        return self.o_proj(merge_heads(mixed)), all_parts(weights, -3, self.q_proj)


def log_decay(gates: torch.Tensor, mask: torch.Tensor | None, at: torch.Tensor) -> torch.Tensor:
    """How much of a key is forgotten at a query: the sum of log sigmoid(gate) over the tokens after
    the key up to the query, without those that the mask hides from the query. It means nothing for
    later keys, which a query does not see.

    Args:
        gates: before the sigmoid, (..., heads, key).
        mask: boolean; broadcasts to (..., heads, query, key).
        at: the places of the queries among the keys, (query,).

    Returns:
        (..., heads, query, key), in float32 or wider.
    """
    kept = F.logsigmoid(widen(gates)).unsqueeze(-2)
    if mask is not None:
        kept = kept.masked_fill(~mask, 0.0)
    total = kept.cumsum(-1)  # (..., heads, 1 or query, key)
    by_query = (*total.shape[:-2], at.shape[0])
    up_to_query = total.expand(*by_query, -1).gather(-1, at[:, None].expand(*by_query, 1))
    return up_to_query - total
