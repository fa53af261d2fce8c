"""Differential attention: the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Probability, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear
from zoo.slots import Norm
from zoo_components.heads import (
    check_default_head_dim,
    check_divisible,
    default_head_dim,
    heads_text,
)
from zoo_components.norm import RmsNorm
from zoo_components.projections import ALL, Projections
from zoo_components.self_attention import WithSoftmax

if TYPE_CHECKING:
    from torch import nn

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


class Differential(WithSoftmax):
    """Differential attention (Ye et al. 2024, arXiv:2410.05258, section 2.1): the weights of one
    head minus those of another, so that what both attend to cancels out. A pair of heads computes
    (softmax(scale * q_1 k_1^T) - lambda * softmax(scale * q_2 k_2^T)) v, which is normalised and
    multiplied by 1 - lambda_init. The factor is learned: lambda = exp(lambda_q1 . lambda_k1) -
    exp(lambda_q2 . lambda_k2) + lambda_init, with four vectors that all pairs share."""

    n_heads: Shared[Size]
    """The number of query heads, two for each pair: pair i is of head i and head n_heads / 2 +
    i."""
    n_kv_heads: Shared[Size] = Field(default_factory=lambda data: data["n_heads"])
    """The number of key heads, two for each pair of keys, which has one value head of twice the
    width. Each pair of keys serves n_heads / n_kv_heads pairs of queries."""
    head_dim: Shared[Size] = Field(default_factory=default_head_dim)
    """The width of a query and key head; d_model / n_heads by default."""
    pair_width: Given[int] = Field(default_factory=lambda data: 2 * data["head_dim"])
    """The width of a pair's values and output."""
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none."""
    lambda_init: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.8
    """The constant in lambda. The paper takes 0.8 - 0.6 * exp(-0.3 * i) in layer i = 0, 1, ...,
    to be stated by `per_layer`, and finds 0.8 in all layers nearly as good."""
    head_norm: Annotated[
        Norm, Slot("norm", default="rms_norm", inherit=False, width="pair_width")
    ] = Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["pair_width"]))
    """The norm of each pair's output, with the same weights for all pairs."""
    scale: PositiveFloat = Field(default_factory=lambda data: data["head_dim"] ** -0.5)
    """The factor that multiplies the scores; 1 / sqrt(head_dim) by default."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights of each head, before the difference."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_default_head_dim(self, self.n_heads)
        for name in ("n_heads", "n_kv_heads"):
            if (number := getattr(self, name)) % 2:
                raise contradiction(f"heads work in pairs: {name} is even, not {number}", name)
        check_divisible(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads)
        return self

    def layout(self) -> Layout:
        key_width = self.key_width or self.d_model
        q, k = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        # A dot product of two vectors: each number of one is an input of one output.
        factor = Tensor((self.head_dim,), fan_in=self.head_dim, fan_out=1)
        parts: dict[str, Tensor | Layout] = {
            "q_proj": linear(self.d_model, q, bias="q" in self.bias),
            "k_proj": linear(key_width, k, bias="k" in self.bias),
            "v_proj": linear(key_width, k, bias="v" in self.bias),
            **dict.fromkeys(LAMBDAS, factor),
            "head_norm": self.head_norm.layout(),
            "o_proj": linear(q, self.d_model, bias="o" in self.bias, residual=True),
        }
        return Layout(
            parts,
            heads_text(self.n_heads, self.n_kv_heads, self.head_dim),
            cache=0 if self.key_width else 2 * k,
            memory_cache=2 * k if self.key_width else 0,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.differential import DifferentialAttention
        from zoo_components.modules.scores import Scoring

        return DifferentialAttention(
            d_model=self.d_model,
            key_width=self.key_width or self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            bias=self.bias,
            lambda_init=self.lambda_init,
            head_norm=self.head_norm.build(),
            scoring=Scoring(scale=self.scale, dropout=self.dropout),
        )
