"""The matrix memory of xLSTM, in the `attention` slot."""

from typing import TYPE_CHECKING

from pydantic import Field

from zoo.component import PositiveFloat, Size
from zoo.layout import Layout, linear, vector
from zoo_components.heads import OfHeads, heads_text
from zoo_components.optional import PositiveFloatOrNone, number
from zoo_components.recurrent import Recurrent

if TYPE_CHECKING:
    from torch import nn

FIRST_INPUT = -10.0
"""The bias of the input gates at the start, as in xLSTM-7B."""
FIRST_FORGET = 4.5
"""That of the forget gates: the middle of those from 3 to 6 that the heads of xLSTM-7B have."""


class Mlstm(OfHeads, Recurrent):
    """mLSTM, the LSTM with a matrix as memory of xLSTM (Beck et al. 2024, arXiv:2405.04517, section
    2.3), as in the layers of xLSTM-7B (Beck et al. 2025, arXiv:2503.13427). Each head has a memory
    C and a sum of keys n. A token with the query q, the key k and the value v turns them into
    f C + i v k^T and f n + i k, and reads C q' / max(|n . q'|, 1) with q' = q / sqrt(head_dim). The
    input gate i = exp(in_gate(x)) has no bound, and the forget gate is f = sigmoid(forget_gate(x));
    what they are made of is capped. What each head reads is normalised by itself, and multiplied
    with sigmoid(gate_proj(x)). Whole sequences are computed in chunks, as products of matrices.
    Generation keeps C, n and, as in the paper, the logarithm that both are scaled by, so that
    exponentials do not overflow."""

    v_head_dim: Size = Field(default_factory=lambda data: data["head_dim"])
    """The width of a value head; in xLSTM-7B it is twice `head_dim`, that of queries and keys."""
    gate_softcap: PositiveFloatOrNone = 15.0
    """A bound that in_gate(x) and forget_gate(x) approach: gate_softcap * tanh(x / gate_softcap);
    "none" for no bound."""
    divisor_eps: PositiveFloat = 1e-6
    """Added to the divisor of the scaled memory, as if that of C q' were max(|n . q'|, 1) +
    divisor_eps * exp(m). Here m is the logarithm of the scale, which a token turns from 0 into
    max(log(f) + m, log(i))."""
    eps: PositiveFloat = 1e-6
    """Added to the variance, inside the root of the norm of what each head reads (LayerNorm: Ba et
    al. 2016, arXiv:1607.06450), which has a weight for each channel."""

    def layout(self) -> Layout:
        keys, values = self.n_heads * self.head_dim, self.n_heads * self.v_head_dim
        to_gates = linear(self.d_model, self.n_heads, bias=False)
        return Layout(
            {
                "q_proj": linear(self.d_model, keys, bias=False),
                "k_proj": linear(self.d_model, keys, bias=False),
                "v_proj": linear(self.d_model, values, bias=False),
                "gate_proj": linear(self.d_model, values, bias=False),
                "in_gate": to_gates.with_parts(bias=vector(self.n_heads, value=FIRST_INPUT)),
                "forget_gate": to_gates.with_parts(bias=vector(self.n_heads, value=FIRST_FORGET)),
                "inner_norm": Layout({"weight": vector(values, value=1.0)}),
                "o_proj": linear(values, self.d_model, bias=False, residual=True),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            state=self.n_heads * (self.head_dim * (self.v_head_dim + 1) + 1),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.mlstm import Mlstm as Module

        return Module(
            d_model=self.d_model,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            gate_softcap=number(self.gate_softcap),
            divisor_eps=self.divisor_eps,
            eps=self.eps,
        )
