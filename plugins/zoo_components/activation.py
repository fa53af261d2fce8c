"""Activation functions by name, for the feed-forward components."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from zoo.component import Component
from zoo.layout import Layout, Tensor, vector
from zoo.only_with import UNSTATED, OnlyWith

if TYPE_CHECKING:
    from torch import nn

Activation = Literal[
    "relu",
    "relu_squared",
    "prelu",
    "gelu",
    "gelu_tanh",
    "gelu_quick",
    "silu",
    "swish",
    "xielu",
    "tanh",
    "sigmoid",
    "softplus",
    "none",
]
"""ReLU; its square (So et al. 2021, arXiv:2109.08668); PReLU with one learned slope (He et al.
2015, arXiv:1502.01852). GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415) exact, by tanh, and as
x * sigmoid(1.702 x). SiLU, x * sigmoid(x) (Elfwing et al. 2017, arXiv:1702.03118), and Swish,
x * sigmoid(beta x) (Ramachandran et al. 2017, arXiv:1710.05941). xIELU with two learned numbers
(Huang and Schlag 2024, arXiv:2411.13010). tanh; the logistic function; log(1 + exp(x)); none."""

# BLOOM's tanh GELU writes sqrt(2 / pi) with eight digits, which is the same float32 number:
# it is `gelu_tanh`.

_XIELU_BETA, _XIELU_EPS = 0.5, -1e-6
_XIELU_ALPHA = 0.8


class Activated(Component):
    """A component with an activation, and the options and tensors of that activation."""

    activation: Activation = "relu"
    """The activation between the maps."""
    slope: Annotated[
        float | None, Field(gt=0.0, le=1e6), OnlyWith("activation", "prelu", default=0.25)
    ] = UNSTATED
    """With `prelu`: the initial value of the learned slope for negative inputs; 0.25 by default."""
    beta: Annotated[
        float | None, Field(gt=0.0, le=1e6), OnlyWith("activation", "swish", default=1.0)
    ] = UNSTATED
    """With `swish`: the factor beta inside the sigmoid; 1 by default."""

    def activation_parts(self) -> dict[str, Layout]:
        """The parts of the component's layout that hold the activation's tensors, if it has any."""
        if self.activation == "prelu":
            assert self.slope is not None
            return {"activation": Layout({"weight": vector(1, value=self.slope)})}
        if self.activation == "xielu":
            tensors = {
                "alpha_p": vector(1, value=_inverse_softplus(_XIELU_ALPHA)),
                "alpha_n": vector(1, value=_inverse_softplus(_XIELU_ALPHA - _XIELU_BETA)),
                "beta": Tensor((), "constant", value=_XIELU_BETA, buffer=True),
                "eps": Tensor((), "constant", value=_XIELU_EPS, buffer=True),
            }
            return {"activation": Layout(tensors)}
        return {}

    def build_activation(self) -> "nn.Module":
        """Build the activation's module, which keeps the shape of its input."""
        from zoo_components.modules.activation import make_activation

        return make_activation(self.activation, slope=self.slope, beta=self.beta)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
