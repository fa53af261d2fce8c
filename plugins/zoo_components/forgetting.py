"""Attention with forget gates: the `attention` slot."""

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, Size
from zoo.layout import Layout, column_wise, linear, row_wise
from zoo_components.heads import (
    check_default_head_dim,
    check_divisible,
    default_head_dim,
    heads_text,
)
from zoo_components.projections import ALL, Projections
from zoo_components.self_attention import WithinSequence, WithSoftmax

if TYPE_CHECKING:
    from torch import nn


class Forgetting(WithinSequence, WithSoftmax):
    """Softmax attention with forget gates, that of the Forgetting Transformer (Lin et al. 2025,
    arXiv:2503.02130, section 3): softmax(scale * q k^T + D) v for each head, where D_ij is the sum
    of log f over the tokens after key j up to query i, and f = sigmoid(forget_proj(x)) is a gate of
    each token and head. So what is long ago fades, by as much as the tokens since then say; the
    paper uses it without positions. To a query, a token that the mask hides is not there, nor is
    its gate."""

    n_heads: Shared[Size]
    """The number of query heads, each with a gate."""
    n_kv_heads: Shared[Size] = Field(default_factory=lambda data: data["n_heads"])
    """The number of key-value heads; each serves n_heads / n_kv_heads query heads."""
    head_dim: Shared[Size] = Field(default_factory=default_head_dim)
    """The width of a head; d_model / n_heads by default."""
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none. That to the gates always has one."""
    scale: PositiveFloat = Field(default_factory=lambda data: data["head_dim"] ** -0.5)
    """The factor that multiplies q k^T; 1 / sqrt(head_dim) by default."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_default_head_dim(self, self.n_heads)
        check_divisible(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads)
        return self

    @property
    def only_causal(self) -> bool:
        return True

    def layout(self) -> Layout:
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        heads, kv_heads = column_wise(self.n_heads), column_wise(self.n_kv_heads)
        return Layout(
            {
                "q_proj": linear(self.d_model, queries, bias="q" in self.bias, cut=heads),
                "k_proj": linear(self.d_model, keys, bias="k" in self.bias, cut=kv_heads),
                "v_proj": linear(self.d_model, keys, bias="v" in self.bias, cut=kv_heads),
                "forget_proj": linear(self.d_model, self.n_heads, cut=heads),
                "o_proj": linear(
                    queries,
                    self.d_model,
                    bias="o" in self.bias,
                    residual=True,
                    cut=row_wise(self.n_heads),
                ),
            },
            heads_text(self.n_heads, self.n_kv_heads, self.head_dim),
            cache=2 * keys + self.n_heads,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.forgetting import ForgettingAttention
        from zoo_components.modules.scores import Scoring

        return ForgettingAttention(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            bias=self.bias,
            scoring=Scoring(scale=self.scale, dropout=self.dropout),
        )
