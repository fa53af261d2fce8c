"""Attention: the `attention` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, Size, contradiction
from zoo.layout import Layout, linear
from zoo.slots import Attention

if TYPE_CHECKING:
    from torch import nn

Projection = Literal["q", "k", "v", "o"]


def _all_or_none(value: Any) -> Any:
    """`true` and `false` as the list of projections that they stand for."""
    return {True: ("q", "k", "v", "o"), False: ()}[value] if isinstance(value, bool) else value


class MultiHead(Attention):
    """Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2):
    softmax(scale * q k^T) v for each head. With fewer key-value heads than heads it is
    grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), with one multi-query attention
    (Shazeer 2019, arXiv:1911.02150)."""

    n_heads: Shared[Size]
    """Query heads."""
    n_kv_heads: Shared[Size] = Field(default_factory=lambda data: data["n_heads"])
    """Key-value heads; each serves n_heads / n_kv_heads query heads."""
    head_dim: Shared[Size] = Field(
        default_factory=lambda data: max(1, data["d_model"] // data["n_heads"])
    )
    """The width of a query and key head; d_model / n_heads by default."""
    v_head_dim: Size = Field(default_factory=lambda data: data["head_dim"])
    """The width of a value head."""
    d_out: Size = Field(default_factory=lambda data: data["d_model"])
    """The width of the output; in a block it is d_model."""
    bias: Shared[
        Annotated[tuple[Projection, ...], Field(strict=False), BeforeValidator(_all_or_none)]
    ] = ("q", "k", "v", "o")
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` or `false`."""
    output_projection: bool = True
    """Whether the heads' outputs go through a linear map; without it they are the output."""
    scale: PositiveFloat = Field(default_factory=lambda data: data["head_dim"] ** -0.5)
    """What the scores are multiplied with; 1 / sqrt(head_dim) by default."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""
    masked_rows: Literal["zero", "uniform"] = "zero"
    """What a query that may attend to nothing gets: zero weights, as with a mask of -inf and no
    NaN, or equal weights, as with a mask of -1e9."""

    @model_validator(mode="after")
    def _check(self) -> MultiHead:
        if "head_dim" not in self.model_fields_set and self.d_model % self.n_heads:
            raise contradiction(
                f"d_model = {self.d_model} is not divisible by n_heads = {self.n_heads}; "
                "state `head_dim`, or change one of the two",
                "n_heads",
                "d_model",
            )
        if self.n_heads % self.n_kv_heads:
            raise contradiction(
                f"n_heads = {self.n_heads} is not divisible by n_kv_heads = {self.n_kv_heads}",
                "n_kv_heads",
                "n_heads",
            )
        if not self.output_projection and self.d_out != self.n_heads * self.v_head_dim:
            raise contradiction(
                f"without an output projection the output is n_heads * v_head_dim = "
                f"{self.n_heads * self.v_head_dim} wide, not {self.d_out}",
                "output_projection",
                "v_head_dim",
                "head_dim",
                "n_heads",
            )
        return self

    def layout(self) -> Layout:
        key_width = self.key_width or self.d_model
        parts = {
            "q_proj": linear(self.d_model, self.n_heads * self.head_dim, bias="q" in self.bias),
            "k_proj": linear(key_width, self.n_kv_heads * self.head_dim, bias="k" in self.bias),
            "v_proj": linear(key_width, self.n_kv_heads * self.v_head_dim, bias="v" in self.bias),
        }
        if self.output_projection:
            width = self.n_heads * self.v_head_dim
            parts["o_proj"] = linear(width, self.d_out, bias="o" in self.bias, residual=True)
        cache = self.n_kv_heads * (self.head_dim + self.v_head_dim)
        groups = "" if self.n_kv_heads == self.n_heads else f" over {self.n_kv_heads}"
        return Layout(
            parts,
            f"multi_head, {self.n_heads}{groups} heads of {self.head_dim}",
            cache=0 if self.key_width else cache,
            memory_cache=cache if self.key_width else 0,
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.attention import MultiHeadAttention

        return MultiHeadAttention(
            d_model=self.d_model,
            key_width=self.key_width or self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            d_out=self.d_out,
            bias=self.bias,
            output_projection=self.output_projection,
            scale=self.scale,
            dropout=self.dropout,
            uniform_masked_rows=self.masked_rows == "uniform",
        )
