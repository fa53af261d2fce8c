"""Short convolutions with gates, in the `attention` slot."""

from typing import TYPE_CHECKING

from zoo.component import Shared, Size
from zoo.layout import Layout, Tensor, linear
from zoo_components.recurrent import Recurrent

if TYPE_CHECKING:
    from torch import nn


class ShortConvolution(Recurrent):
    """A convolution over the last few tokens between two gates, all linear in the input, as in the
    layers of LFM2 without attention: o_proj(out_gate_proj(x) * conv(in_gate_proj(x) * v_proj(x))),
    with a kernel of its own for each channel, which reads the token itself and those before it. It
    is a form of H3 (Fu et al. 2023, arXiv:2212.14052) without its long memory. Generation keeps the
    last inputs of the convolution."""

    kernel_size: Size = 3
    """The number of tokens that each output of the convolution depends on, itself included."""
    bias: Shared[bool] = True
    """Whether the maps and the convolution have a bias."""

    def layout(self) -> Layout:
        to = linear(self.d_model, self.d_model, bias=self.bias)
        return Layout(
            {
                "v_proj": to,
                "in_gate_proj": to,
                "out_gate_proj": to,
                "conv": convolution(self.d_model, self.kernel_size, bias=self.bias),
                "o_proj": linear(self.d_model, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.kind} kernel {self.kernel_size}",
            state=(self.kernel_size - 1) * self.d_model,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.convolution import ShortConvolution as Module

        return Module(d_model=self.d_model, kernel_size=self.kernel_size, bias=self.bias)


def convolution(n_channels: int, kernel_size: int, *, bias: bool) -> Layout:
    """The layout of a `CausalConvolution`."""
    k = kernel_size  # each channel has its own
    parts = {"weight": Tensor((n_channels, 1, k), fan_in=k, fan_out=k)}
    if bias:
        parts["bias"] = Tensor((n_channels,), "bias", fan_in=k, fan_out=k)
    return Layout(parts)
