"""Feed-forward networks: the `ffn` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from zoo.component import PositiveFloat, Probability, Shared, Size, Slot
from zoo.layout import Layout, Tensor, linear, vector
from zoo.slots import FeedForward, Norm
from zoo_components.activation import Activation, activation_parts

if TYPE_CHECKING:
    from torch import nn


class Mlp(FeedForward):
    """Two linear maps with an activation between (Vaswani et al. 2017, section 3.3):
    down(dropout(activation(up(x))))."""

    d_ff: Shared[Size]
    """The inner width."""
    activation: Activation = "relu"
    """The activation between the two maps."""
    slope: PositiveFloat = 0.25
    """Where the slope of `activation = "prelu"` starts."""
    bias: Shared[bool] = True
    """Whether both maps have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""

    def layout(self) -> Layout:
        return Layout(
            {
                "up_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                **activation_parts(self.activation, self.slope),
                "down_proj": linear(self.d_ff, self.d_model, bias=self.bias, residual=True),
            },
            f"mlp {self.activation}, d_ff {self.d_ff}",
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.ffn import Mlp as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            activation=make_activation(self.activation, slope=self.slope),
            bias=self.bias,
            dropout=self.dropout,
        )


class Glu(FeedForward):
    """A gated linear unit (Shazeer 2020, arXiv:2002.05202): down(activation(gate(x)) * up(x)).
    `silu` is SwiGLU, `gelu` GeGLU, `relu` ReGLU, `none` the bilinear layer."""

    d_ff: Shared[Size]
    """The inner width."""
    activation: Activation = "silu"
    """The activation of the gate."""
    slope: PositiveFloat = 0.25
    """Where the slope of `activation = "prelu"` starts."""
    bias: Shared[bool] = True
    """Whether the three maps have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the product."""

    def layout(self) -> Layout:
        return Layout(
            {
                "gate_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                **activation_parts(self.activation, self.slope),
                "up_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                "down_proj": linear(self.d_ff, self.d_model, bias=self.bias, residual=True),
            },
            f"glu {self.activation}, d_ff {self.d_ff}",
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.ffn import Glu as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            activation=make_activation(self.activation, slope=self.slope),
            bias=self.bias,
            dropout=self.dropout,
        )


class Conv1d(FeedForward):
    """Two 1-d convolutions over the sequence with an activation between, as in FastSpeech (Ren et
    al. 2019, arXiv:1905.09263); with kernels of 1 it is `mlp` in another layout."""

    d_ff: Shared[Size]
    """The inner number of channels."""
    kernel_size: Size = 1
    """Positions that each output sees; the sequence is padded with zeros to keep its length."""
    activation: Activation = "relu"
    """The activation between the two convolutions."""
    slope: PositiveFloat = 0.25
    """Where the slope of `activation = "prelu"` starts."""
    bias: Shared[bool] = True
    """Whether both convolutions have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""

    def layout(self) -> Layout:
        return Layout(
            {
                "up_proj": self._conv(self.d_model, self.d_ff),
                **activation_parts(self.activation, self.slope),
                "down_proj": self._conv(self.d_ff, self.d_model, residual=True),
            },
            f"conv1d {self.activation}, d_ff {self.d_ff}, kernel {self.kernel_size}",
        )

    def _conv(self, n_in: int, n_out: int, *, residual: bool = False) -> Layout:
        k = self.kernel_size
        weight = Tensor(
            (n_out, n_in, k),
            "residual" if residual else "weight",
            fan_in=n_in * k,
            fan_out=n_out * k,
        )
        return Layout({"weight": weight} | ({"bias": vector(n_out, "bias")} if self.bias else {}))

    def build(self) -> nn.Module:
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.ffn import Conv1d as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            kernel_size=self.kernel_size,
            activation=make_activation(self.activation, slope=self.slope),
            bias=self.bias,
            dropout=self.dropout,
        )


class ResidualStack(FeedForward):
    """Residual feed-forward units in a row that share one set of weights (as the layers of
    Dehghani et al. 2018, arXiv:1807.03819, do). Each unit is
    x + down(dropout(activation(up(unit_norm(x))))); the branch returns what all units add to x."""

    n_units: Size = 1
    """How often the unit is applied."""
    expansion_factor: PositiveFloat = 4.0
    """The inner width is int(d_model * expansion_factor)."""
    unit_norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm at the start of each unit."""
    activation: Activation = "prelu"
    """The activation between the two maps."""
    slope: PositiveFloat = 0.25
    """Where the slope of `activation = "prelu"` starts."""
    bias: Shared[bool] = True
    """Whether both maps have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""

    @property
    def d_ff(self) -> int:
        """The inner width."""
        return int(self.d_model * self.expansion_factor)

    def layout(self) -> Layout:
        return Layout(
            {
                "unit_norm": self.unit_norm.layout(),
                "up_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                **activation_parts(self.activation, self.slope),
                "down_proj": linear(self.d_ff, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.n_units} x residual unit {self.activation}, d_ff {self.d_ff}",
        )

    def build(self) -> nn.Module:
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.ffn import ResidualStack as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            n_units=self.n_units,
            norm=self.unit_norm.build(),
            activation=make_activation(self.activation, slope=self.slope),
            bias=self.bias,
            dropout=self.dropout,
        )
