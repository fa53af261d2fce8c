"""The gMLP layer, whose gates mix tokens by a learned matrix: the `attention` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from zoo.component import Given, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear, vector
from zoo.slots import Norm
from zoo_components.activation import Activated, Activation
from zoo_components.recurrent import WithoutSoftmax
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn


class Gmlp(Activated, WithoutSoftmax, WithinSequence):
    """The layer of gMLP, a feed-forward network whose hidden units mix tokens (Liu et al. 2021,
    arXiv:2105.08050): down(u * (W gate_norm(v) + b)), where u and v are the two halves of
    activation(up(x)), W is a learned number for each pair of positions, and b one for each
    position. In the paper it is all that a layer has: `ffn = "none"`. At the start W is 0 and b is
    1, so that tokens are not mixed. In a causal stack, a position sees none after it in W."""

    example: ClassVar[Mapping[str, Any]] = {"max_length": 100}
    d_ff: Shared[Size]
    """The number of hidden units, of which the second half gates the first."""
    max_length: Size
    """The number of positions, which is the length of the longest sequence."""
    half: Given[int] = Field(default_factory=lambda data: max(1, data["d_ff"] // 2))
    """The number of gates."""
    gate_norm: Annotated[Norm, Slot("norm", default="layer_norm", inherit=False, width="half")]
    """The norm of the half that becomes the gates."""
    activation: Activation = "gelu"
    """The activation of the hidden units."""
    bias: Shared[bool] = True
    """Whether the two maps have a bias."""

    @model_validator(mode="after")
    def _check_halves(self) -> Self:
        if self.d_ff % 2:
            raise contradiction(
                f"half of the hidden units gate the other half: d_ff is even, not {self.d_ff}",
                "d_ff",
            )
        return self

    @property
    def longest(self) -> int:
        return self.max_length

    def layout(self) -> Layout:
        n = self.max_length
        return Layout(
            {
                "up_proj": linear(self.d_model, self.d_ff, bias=self.bias),
                **self.activation_parts(),
                "gate_norm": self.gate_norm.layout(),
                "spatial_weight": Tensor((n, n), "constant"),
                "spatial_bias": vector(n, value=1.0),
                "down_proj": linear(self.half, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.activation}, d_ff {self.d_ff}, max_length {n}",
            cache=self.half,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.gmlp import Gmlp as Module

        return Module(
            d_model=self.d_model,
            d_ff=self.d_ff,
            max_length=self.max_length,
            activation=self.build_activation(),
            gate_norm=self.gate_norm.build(),
            bias=self.bias,
        )
