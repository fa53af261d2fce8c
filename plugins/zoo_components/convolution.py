"""Short convolutions with gates, in the `attention` slot."""

from math import prod
from typing import TYPE_CHECKING

from zoo.component import Shared, Size
from zoo.layout import Layout, Role, Tensor, linear
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
        width, bias = self.d_model, self.bias
        to = linear(width, width, bias=bias)
        return Layout(
            {
                "v_proj": to,
                "in_gate_proj": to,
                "out_gate_proj": to,
                "conv": convolution(width, width, self.kernel_size, bias=bias, groups=width),
                "o_proj": linear(width, width, bias=bias, residual=True),
            },
            f"kernel {self.kernel_size}",
            state=(self.kernel_size - 1) * self.d_model,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.convolution import ShortConvolution as Module

        return Module(d_model=self.d_model, kernel_size=self.kernel_size, bias=self.bias)


def convolution(
    n_in: int, n_out: int, *kernel: int, bias: bool, groups: int = 1, residual: bool = False
) -> Layout:
    """The layout of a convolution, such as `nn.Conv1d` or `nn.Conv2d`, with a kernel of these
    sizes."""
    role: Role = "residual" if residual else "weight"
    n_in, size = n_in // groups, prod(kernel)
    fan_in, fan_out = n_in * size, n_out // groups * size
    parts = {"weight": Tensor((n_out, n_in, *kernel), role, fan_in=fan_in, fan_out=fan_out)}
    if bias:
        parts["bias"] = Tensor((n_out,), "bias", fan_in=fan_in, fan_out=fan_out)
    return Layout(parts)
