"""The recurrent block of Griffin, in the `attention` slot."""

from math import expm1, log
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from zoo.component import Shared, Size, contradiction
from zoo.layout import Layout, Tensor, linear, vector
from zoo_components.activation import Activated, Activation
from zoo_components.convolution import convolution
from zoo_components.recurrent import FIRST_RATE, Recurrent

if TYPE_CHECKING:
    from torch import nn

SHARPNESS = 8.0
"""The constant c of the paper."""
_FIRST = log(expm1(2 * FIRST_RATE / SHARPNESS))
"""With it, an input of zeros, whose gates are a half, fades by the rate `FIRST_RATE`."""


class RgLru(Activated, Recurrent):
    """The recurrent block of Griffin (De et al. 2024, arXiv:2402.19427, sections 2.3 and 2.4), as
    in RecurrentGemma: o_proj(activation(gate_proj(x)) * h), where h is a real-gated linear
    recurrent unit over u = conv(v_proj(x)), channel by channel:
    h_t = a_t h_(t-1) + sqrt(1 - a_t^2) sigmoid(in_gate(u_t)) u_t with
    a_t = exp(-8 softplus(rate) sigmoid(rate_gate(u_t))). The first token has no earlier one, and
    enters without the root. The maps of both gates are made of a block for each head. Generation
    keeps h, and the last inputs of the convolution."""

    n_heads: Shared[Size]
    """The number of blocks of the maps to the gates."""
    d_inner: Size = Field(default_factory=lambda data: data["d_model"])
    """The number of channels."""
    kernel_size: Size = 4
    """The number of tokens that the convolution reads, the token itself included."""
    activation: Activation = "gelu_tanh"
    """The activation of the gate of the output."""
    bias: Shared[bool] = True
    """Whether the maps, those to the gates too, and the convolution have a bias."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.d_inner % self.n_heads:
            raise contradiction(
                f"d_inner = {self.d_inner} is not divisible by n_heads = {self.n_heads}",
                "d_inner",
                "n_heads",
                "d_model",
            )
        return self

    def layout(self) -> Layout:
        inner = self.d_inner
        return Layout(
            {
                "v_proj": linear(self.d_model, inner, bias=self.bias),
                "gate_proj": linear(self.d_model, inner, bias=self.bias),
                "conv": convolution(inner, inner, self.kernel_size, bias=self.bias, groups=inner),
                "in_gate": self._blocks(),
                "rate_gate": self._blocks(),
                "rate": vector(inner, value=_FIRST),
                **self.activation_parts(),
                "o_proj": linear(inner, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.n_heads} blocks of {inner // self.n_heads}",
            state=self.kernel_size * inner + 1,
        )

    def _blocks(self) -> Layout:
        """The layout of a map to a gate, whose matrix has blocks on its diagonal."""
        n = self.d_inner // self.n_heads
        parts = {"weight": Tensor((self.n_heads, n, n), fan_in=n, fan_out=n)}
        if self.bias:
            parts["bias"] = Tensor((self.n_heads, n), "bias", fan_in=n, fan_out=n)
        return Layout(parts)

    def build(self) -> "nn.Module":
        from zoo_components.modules.rg_lru import RgLru as Module

        return Module(
            d_model=self.d_model,
            d_inner=self.d_inner,
            n_blocks=self.n_heads,
            kernel_size=self.kernel_size,
            activation=self.build_activation(),
            bias=self.bias,
            sharpness=SHARPNESS,
        )
