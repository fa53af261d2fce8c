"""Kimi Delta Attention, in the `attention` slot."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import Size, Slot
from zoo.layout import Layout, linear, vector
from zoo.slots import Norm
from zoo_components.convolution import convolution
from zoo_components.heads import OfHeads, heads_text
from zoo_components.norm import RmsNorm
from zoo_components.recurrent import FIRST_STEP, Recurrent

if TYPE_CHECKING:
    from torch import nn


class KimiDelta(OfHeads, Recurrent):
    """Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692): a gated delta network as
    `gated_delta`, but each channel of the keys has a decay of its own. Each head has a state S that
    maps keys to values. A token with the key k, the value v, the decays a and the strength b turns
    it into S diag(a) (1 - b k k^T) + b v k^T and reads S q. Queries, keys and values go through a
    short convolution and SiLU, queries and keys have length 1, and what is read is normalised and
    multiplied with a gate. The decays are
    exp(-exp(log_rate) * softplus(decay_b_proj(decay_a_proj(x)) + rate_bias)), with a rate for each
    head, the strength sigmoid(beta_proj(x)), the gate sigmoid(gate_b_proj(gate_a_proj(x))); between
    the two maps to the decays there are head_dim channels, and so for the gate. Generation keeps
    the states, and the last inputs of the convolutions."""

    kernel_size: Size = 4
    """The number of tokens that the convolutions read, the token itself included."""
    head_norm: Annotated[
        Norm, Slot("norm", default="rms_norm", inherit=False, width="head_dim")
    ] = Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["head_dim"]))
    """The norm of what each head reads, before the gate."""

    def layout(self) -> Layout:
        width = self.n_heads * self.head_dim
        whole = linear(self.d_model, width, bias=False)
        narrow = linear(self.d_model, self.head_dim, bias=False)
        wide = linear(self.head_dim, width, bias=False)
        conv = convolution(width, width, self.kernel_size, bias=False, groups=width)
        return Layout(
            {
                **dict.fromkeys(("q_proj", "k_proj", "v_proj"), whole),
                **dict.fromkeys(("decay_a_proj", "gate_a_proj"), narrow),
                **dict.fromkeys(("decay_b_proj", "gate_b_proj"), wide),
                "beta_proj": linear(self.d_model, self.n_heads, bias=False),
                **dict.fromkeys(("q_conv", "k_conv", "v_conv"), conv),
                "log_rate": vector(self.n_heads),
                "rate_bias": vector(width, value=FIRST_STEP),
                "head_norm": self.head_norm.layout(),
                "o_proj": linear(width, self.d_model, bias=False, residual=True),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            state=width * self.head_dim + (self.kernel_size - 1) * 3 * width,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.kimi_delta import KimiDelta as Module

        return Module(
            d_model=self.d_model,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            kernel_size=self.kernel_size,
            head_norm=self.head_norm.build(),
        )
