"""Attention whose queries weigh the bias of positions: the `attention` slot."""

from typing import TYPE_CHECKING, ClassVar

from zoo.layout import Layout, Tensor, linear, vector
from zoo_components.self_attention import SelfAttention, WithSoftmax

if TYPE_CHECKING:
    from torch import nn

GATE_OUTPUTS = 8
"""How many outputs the map of the gates has: four to sum up for each of two gates."""


class GatedBias(SelfAttention, WithSoftmax):
    """Multi-head attention with a gated bias of positions (XLM-E: Chi et al. 2021,
    arXiv:2106.16138; WavLM: Chen et al. 2021, arXiv:2110.13900):
    softmax(q k^T / sqrt(head_dim) + (2 + a * (c * b - 1)) * bias) v for each head, where c is a
    learned number, and a and b are the sigmoids of the sums of the first and of the last four
    outputs of one linear map, which all heads share, of the head's part of x. So what the layer
    reads at a position says how much the distances from there matter. It needs a position scheme
    with a learned bias, such as `t5_buckets`. The map to the gates always has a bias."""

    reads: ClassVar[str | None] = "rel_bias"

    def _own_parts(self) -> dict[str, Tensor | Layout]:
        return {
            "gate_proj": linear(self.head_dim, GATE_OUTPUTS),
            "gate_scale": vector(self.n_heads, value=1.0),
        }

    def build(self) -> "nn.Module":
        from zoo_components.modules.gated_bias import GatedBiasAttention

        return GatedBiasAttention(self._common, gate_outputs=GATE_OUTPUTS)
