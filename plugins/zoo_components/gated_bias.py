"""Attention whose queries weigh the bias of positions: the `attention` slot."""

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import model_validator

from zoo.component import Probability, Shared, Size
from zoo.layout import Layout, linear, vector
from zoo.slots import Attention
from zoo.wording import counted
from zoo_components.heads import check_default_head_dim
from zoo_components.projections import ALL, Projections

if TYPE_CHECKING:
    from torch import nn

GATE_OUTPUTS = 8
"""How many outputs the map of the gates has: four to sum up for each of two gates."""


class GatedBias(Attention):
    """Multi-head attention with a gated bias of positions (XLM-E: Chi et al. 2021,
    arXiv:2106.16138; WavLM: Chen et al. 2021, arXiv:2110.13900):
    softmax(q k^T / sqrt(head_dim) + (2 + a * (c * b - 1)) * bias) v for each head, where c is a
    learned number, and a and b are the sigmoids of the sums of the first and of the last four
    outputs of one linear map, which all heads share, of the head's part of x. So what the layer
    reads at a position says how much the distances from there matter. It needs a position scheme
    with a learned bias, such as `t5_buckets`."""

    recordable: ClassVar[bool] = True
    reads: ClassVar[str | None] = "rel_bias"
    n_heads: Shared[Size]
    """The number of heads, each d_model / n_heads wide."""
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none. That to the gates always has one."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key_width is not None:
            raise ValueError(
                f"`{self.kind}` is about distances within one sequence: choose another kind for "
                "`cross_attn`"
            )
        check_default_head_dim(self.d_model, self.n_heads)
        return self

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.d_model // self.n_heads

    @property
    def against_fused(self) -> None:
        return None

    @property
    def incremental(self) -> bool:
        return True

    def layout(self) -> Layout:
        width = self.d_model
        parts = {f"{p}_proj": linear(width, width, bias=p in self.bias) for p in "qkv"}
        return Layout(
            {
                **parts,
                "gate_proj": linear(self.head_dim, GATE_OUTPUTS),
                "gate_scale": vector(self.n_heads, value=1.0),
                "o_proj": linear(width, width, bias="o" in self.bias, residual=True),
            },
            f"{self.kind}, {counted(self.n_heads, 'head')} of {self.head_dim}",
            cache=2 * width,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.gated_bias import GatedBiasAttention
        from zoo_components.modules.scores import Scoring

        return GatedBiasAttention(
            d_model=self.d_model,
            n_heads=self.n_heads,
            bias=self.bias,
            gate_outputs=GATE_OUTPUTS,
            scoring=Scoring(scale=self.head_dim**-0.5, dropout=self.dropout),
        )
