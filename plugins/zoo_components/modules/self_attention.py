"""What simple kinds of attention within one sequence have in common, and one of these."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, together
from zoo.position import PositionScheme, Rotation
from zoo_components.heads import heads_text
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.scores import Scoring, attend


class Common(NamedTuple):
    """What a `SelfAttention` is made of, whatever its kind.

    Args:
        d_model: the width of the input and of the output.
        n_heads: the number of heads.
        head_dim: the width of a head.
        bias: which of the maps `q`, `k`, `v` and `o` have a bias.
        scoring: how scores become weights.
    """

    d_model: int
    n_heads: int
    head_dim: int
    bias: Collection[str]
    scoring: Scoring


class SelfAttention(nn.Module):
    """o_proj(concat(head_1, ..., head_h)) with head_i = softmax(scale * q_i k_i^T + bias) v_i
    (Vaswani et al. 2017, section 3.2.2). What is added to the queries and to the bias, and which
    vectors are rotated, differs in its kinds."""

    rotates_input: ClassVar[bool] = False
    """Whether rotary positions turn the input of the maps to queries and keys, not these."""

    def __init__(self, common: Common) -> None:
        super().__init__()
        width, bias = common.d_model, common.bias
        self.n_heads, self.head_dim = common.n_heads, common.head_dim
        self.scoring = common.scoring
        inner = self.n_heads * self.head_dim
        self.q_proj = Linear(width, inner, bias="q" in bias)
        self.k_proj = Linear(width, inner, bias="k" in bias)
        self.v_proj = Linear(width, inner, bias="v" in bias)
        self.o_proj = Linear(inner, width, bias="o" in bias)

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
            rotation: rotates queries and keys, or what they are made of, by their positions.
            bias: added to the scores as `beside` says; broadcasts to (..., heads, query, key).
            positions: of the queries, (query,) or (..., query); by default 0, 1, ....
            scheme: holds the tables that a kind reads; only for kinds that do.
            cache: the keys and values of the earlier tokens; `x` are the next ones. Only for kinds
                that are incremental.
            return_weights: also return the weights, (..., heads, query, key).

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        if rotation is not None and self.rotates_input:
            turned = merge_heads(rotation(split_heads(x, self.head_dim)))
            made = *together([self.q_proj, self.k_proj], turned), self.v_proj(x)
        else:
            made = together([self.q_proj, self.k_proj, self.v_proj], x)
        of_heads = self.between_tokens(made, mask, cache)
        q, k, v = (split_heads(one, self.head_dim) for one in of_heads)
        q, bias = self.beside(x, q, k, positions=positions, scheme=scheme, bias=bias)
        if rotation is not None and not self.rotates_input:
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
            bias=bias,
            return_weights=return_weights,
        )
        return self.o_proj(merge_heads(mixed)), weights

    def between_tokens(
        self,
        made: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
        cache: AttentionCache | None,
    ) -> Sequence[torch.Tensor]:
        """What queries, keys and values are made of, (..., query, n_heads * head_dim), by what the
        maps return for each token by itself."""
        return made

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
        """The queries that are matched with the keys, and what is added to their scores, for x
        (..., query, d_model), its queries and keys (..., heads, query, head_dim), which are not
        rotated yet, and the positions, the scheme and the bias of `forward`."""
        return q, bias


class RotatedInputAttention(SelfAttention):
    """A `SelfAttention` in which rotary positions turn the parts of the input that are at the
    heads' places before the maps to queries and keys."""

    rotates_input: ClassVar[bool] = True
