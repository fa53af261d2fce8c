"""Feed-forward networks: the `ffn` slot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Probability, Shared, Size, Slot, contradiction
from zoo.layout import Cut, Layout, column_wise, linear, row_wise
from zoo.slots import FeedForward, Norm
from zoo.toml.limits import MAX_INTEGER
from zoo_components.activation import Activated, Activation
from zoo_components.convolution import convolution
from zoo_components.norm import NoNorm

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.ffn import Mlp as MlpModule

Module = TypeVar("Module", bound="MlpModule")


class Mlp(Activated, FeedForward):
    """Two linear maps with an activation between (Vaswani et al. 2017, section 3.3):
    down(dropout(sub_norm(activation(up(x)))))."""

    gated: ClassVar[bool] = False
    d_ff: Shared[Size]
    """The inner width."""
    bias: Shared[bool | Literal["down"]] = True
    """Whether the maps have a bias; with `down` the last map alone has one (GTE: Zhang et al. 2024,
    arXiv:2407.19669)."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""
    sub_norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_ff")] = Field(
        default_factory=lambda data: NoNorm(kind="none", width=data["d_ff"])
    )
    """The norm before the last map (Wang et al. 2022, arXiv:2210.06423; BitNet)."""

    def layout(self) -> Layout:
        inner, outer = self._cuts()
        to = linear(self.d_model, self.d_ff, bias=self._inner_bias, cut=inner)
        back = linear(self.d_ff, self.d_model, bias=bool(self.bias), residual=True, cut=outer)
        return Layout(
            {
                **({"gate_proj": to} if self.gated else {}),
                "up_proj": to,
                **self.activation_parts(),
                "sub_norm": self.sub_norm.layout(),
                "down_proj": back,
            },
            f"{self.activation}, d_ff {self.d_ff}",
        )

    @property
    def _inner_bias(self) -> bool:
        """Whether the maps to the hidden units have a bias."""
        return self.bias is True

    def _cuts(self) -> tuple[Cut | None, Cut | None]:
        """The cuts of the maps to the hidden units and from them. None where a norm, or an
        activation with learned tensors, needs all hidden units in one process."""
        if self.activation_parts() or not self.sub_norm.absent:
            return None, None
        return column_wise(self.d_ff), row_wise(self.d_ff)

    def build(self) -> "nn.Module":
        from zoo_components.modules.ffn import Mlp as Plain

        return self._module(Plain)

    def _module(self, cls: "type[Module]") -> "Module":
        return cls(
            d_model=self.d_model,
            d_ff=self.d_ff,
            gated=self.gated,
            activation=self.build_activation(),
            inner_bias=self._inner_bias,
            bias=bool(self.bias),
            sub_norm=self.sub_norm.build(),
            dropout=self.dropout,
        )


class Glu(Mlp):
    """A gated linear unit (Shazeer 2020, arXiv:2002.05202):
    down(dropout(sub_norm(activation(gate(x)) * up(x)))).
    `silu` is SwiGLU, `gelu` GeGLU, `relu` ReGLU, `none` the bilinear layer."""

    gated: ClassVar[bool] = True
    activation: Activation = "silu"
    """The activation of the gate."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the product."""


class SparseGlu(Glu):
    """A gated linear unit of which only the largest gates are open: down(dropout(sub_norm(
    activation(relu(g - m - s q)) * up(x)))) with g = gate(x), its mean m and standard deviation s
    over the hidden units, and q the quantile of the normal distribution below which a share
    `sparsity` lies (the statistical top-k of Spark Transformer: You et al. 2025, arXiv:2506.06644;
    Gemma 3n)."""

    example: ClassVar[Mapping[str, Any]] = {"sparsity": 0.5}
    sparsity: Annotated[float, Field(gt=0.0, lt=1.0)]
    """The share of gates that are closed, if they are distributed normally."""

    def _cuts(self) -> tuple[None, None]:
        return None, None

    def layout(self) -> Layout:
        whole = super().layout()
        return replace(whole, label=f"{whole.label}, sparsity {self.sparsity:g}")

    def build_activation(self) -> "nn.Module":
        from zoo_components.modules.ffn import SparseGate

        return SparseGate(super().build_activation(), self.sparsity)


class Conv1d(Activated, FeedForward):
    """Two 1-d convolutions over the sequence with an activation between, as in FastSpeech (Ren et
    al. 2019, arXiv:1905.09263); with kernels of 1 it is `mlp` in another layout."""

    d_ff: Shared[Size]
    """The inner number of channels."""
    kernel_size: Size = 1
    """The number of positions that each output depends on, earlier and later ones, also in a causal
    stack; the sequence is padded with zeros to keep its length."""
    bias: Shared[bool] = True
    """Whether both convolutions have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""

    @property
    def incremental(self) -> bool:
        return self.kernel_size == 1

    @property
    def looks_ahead(self) -> bool:
        return self.kernel_size > 1

    def layout(self) -> Layout:
        width, inner, size, bias = self.d_model, self.d_ff, self.kernel_size, self.bias
        return Layout(
            {
                "up_proj": convolution(width, inner, size, bias=bias),
                **self.activation_parts(),
                "down_proj": convolution(inner, width, size, bias=bias, residual=True),
            },
            f"{self.activation}, d_ff {self.d_ff}, kernel {self.kernel_size}",
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.ffn import Conv1d as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            kernel_size=self.kernel_size,
            activation=self.build_activation(),
            bias=self.bias,
            dropout=self.dropout,
        )


class GatedConv1d(Activated, FeedForward):
    """The convolution module of the Conformer (Gulati et al. 2020, arXiv:2005.08100, section 2.2):
    down(activation(conv_norm(conv(up(x) * sigmoid(gate(x)))))), where up, gate and down are linear
    maps of each position, convolutions with kernels of 1, and `conv` has a kernel for each
    channel."""

    causal: Given[bool] = False
    kernel_size: Size = 31
    """The number of positions that each output of the convolution depends on."""
    sides: Literal["past", "both"] = Field(
        default_factory=lambda data: "past" if data["causal"] else "both"
    )
    """Whether those are the position itself and earlier ones (`past`), or as many earlier as later
    ones (`both`; of an even kernel, one later less); before the first and after the last there are
    zeros. `past` by default in a causal stack."""
    conv_norm: Annotated[Norm, Slot("norm", default="batch_norm", inherit=False, width="d_model")]
    """The norm after the convolution."""
    activation: Activation = "silu"
    """The activation after that norm."""
    bias: Shared[bool] = True
    """Whether the maps and the convolution have a bias."""
    masked_tokens: Literal["kept", "zeroed"] = "zeroed"
    """Whether the inputs of the convolution at padding and masked tokens are set to 0, so that
    tokens near them do not depend on these, or kept (wav2vec 2.0 with Conformer layers)."""

    @property
    def incremental(self) -> bool:
        return self.kernel_size == 1

    @property
    def looks_ahead(self) -> bool:
        return self.sides == "both" and self.kernel_size > 2

    @property
    def takes_mask(self) -> bool:
        return self.masked_tokens == "zeroed"

    def layout(self) -> Layout:
        width, bias = self.d_model, self.bias
        to = linear(width, width, bias=bias)
        return Layout(
            {
                "gate_proj": to,
                "up_proj": to,
                "conv": convolution(width, width, self.kernel_size, bias=bias, groups=width),
                "conv_norm": self.conv_norm.layout(),
                **self.activation_parts(),
                "down_proj": linear(width, width, bias=bias, residual=True),
            },
            f"{self.activation}, kernel {self.kernel_size}",
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.ffn import GatedConv1d as Module

        return Module(
            d_model=self.d_model,
            kernel_size=self.kernel_size,
            after=0 if self.sides == "past" else (self.kernel_size - 1) // 2,
            conv_norm=self.conv_norm.build(),
            activation=self.build_activation(),
            bias=self.bias,
        )


class ResidualStack(Activated, FeedForward):
    """Residual feed-forward units in a row that share one set of weights (as the layers of
    Dehghani et al. 2018, arXiv:1807.03819, do). Each unit is
    x + down(dropout(activation(up(unit_norm(x))))); the branch returns what all units add to x."""

    n_units: Size = 1
    """The number of times the unit is applied."""
    expansion_factor: PositiveFloat = 4.0
    """The inner width as a multiple of d_model: int(d_model * expansion_factor)."""
    unit_norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm at the start of each unit."""
    activation: Activation = "prelu"
    """The activation between the two maps."""
    bias: Shared[bool] = True
    """Whether both maps have a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the activation."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        width = self.d_model * self.expansion_factor
        if not 1 <= width <= MAX_INTEGER:
            raise contradiction(
                f"d_model * expansion_factor = {width:g} is no width",
                "expansion_factor",
                "d_model",
            )
        return self

    @property
    def d_ff(self) -> int:
        """The inner width."""
        return int(self.d_model * self.expansion_factor)

    def layout(self) -> Layout:
        return Layout(
            {
                "unit_norm": self.unit_norm.layout(),
                "up_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                **self.activation_parts(),
                "down_proj": linear(self.d_ff, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.n_units} x residual unit {self.activation}, d_ff {self.d_ff}",
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.ffn import ResidualStack as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            n_units=self.n_units,
            norm=self.unit_norm.build(),
            activation=self.build_activation(),
            bias=self.bias,
            dropout=self.dropout,
        )
