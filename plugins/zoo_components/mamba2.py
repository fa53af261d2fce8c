"""The layer of Mamba-2, in the `attention` slot."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Shared, Size, contradiction
from zoo.layout import Layout, linear, vector
from zoo_components.convolution import convolution
from zoo_components.heads import heads_text
from zoo_components.recurrent import FIRST_STEP, Recurrent

if TYPE_CHECKING:
    from torch import nn


def _head_dim(data: dict[str, Any]) -> int:
    """2 d_model / n_heads, of the fields before `head_dim`."""
    return max(1, 2 * data["d_model"] // data["n_heads"])


class Mamba2(Recurrent):
    """The layer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): each head has a state S, which a
    token with the value x, the step d and the vectors B and C turns into
    exp(-d exp(log_rate)) S + d B x^T, and reads as C S + skip x. Values, B and C go through a short
    convolution and SiLU, the step is softplus(step_proj(x) + step_bias), and what all heads read is
    multiplied with silu(gate_proj(x)) and normalised. Whole sequences are computed in chunks, as
    products of matrices. Generation keeps the states, and the last inputs of the convolutions."""

    n_heads: Shared[Size]
    """The number of heads."""
    head_dim: Shared[Size] = Field(default_factory=_head_dim)
    """The width of a head; 2 d_model / n_heads by default."""
    n_groups: Size = 1
    """The number of vectors B, and C, of a token; each serves n_heads / n_groups heads."""
    state_size: Size = 128
    """The width of B and C."""
    kernel_size: Size = 4
    """The number of tokens that the convolutions read, the token itself included."""
    conv_bias: bool = True
    """Whether the convolutions have a bias."""
    bias: Shared[bool] = False
    """Whether the linear maps have a bias."""
    min_step: PositiveFloat | None = None
    """A lower bound of the steps; by default there is none."""
    max_step: PositiveFloat | None = None
    """An upper bound of the steps; by default there is none."""
    eps: PositiveFloat = 1e-5
    """Added to the mean of squares, inside the root of the norm (RMSNorm: Zhang and Sennrich 2019,
    arXiv:1910.07467) after the gate. What the heads of a group read is normalised as one vector,
    with a weight for each channel."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "head_dim" not in self.model_fields_set and 2 * self.d_model % self.n_heads:
            raise contradiction(
                f"2 d_model = {2 * self.d_model} is not divisible by n_heads = {self.n_heads}; "
                "state `head_dim`, or change one of the two",
                "n_heads",
                "d_model",
            )
        if self.n_heads % self.n_groups:
            raise contradiction(
                f"n_heads = {self.n_heads} is not divisible by n_groups = {self.n_groups}",
                "n_groups",
                "n_heads",
            )
        least, most = self.min_step, self.max_step
        if least is not None and most is not None and least > most:
            raise contradiction(
                f"min_step = {least} is greater than max_step = {most}",
                "min_step",
                "max_step",
            )
        return self

    def layout(self) -> Layout:
        inner, vectors = self.n_heads * self.head_dim, self.n_groups * self.state_size
        convolved = {"v": inner, "b": vectors, "c": vectors}
        maps = {"gate": inner} | convolved | {"step": self.n_heads}
        projections = {
            f"{name}_proj": linear(self.d_model, width, bias=self.bias)
            for name, width in maps.items()
        }
        convolutions = {
            f"{name}_conv": convolution(width, self.kernel_size, bias=self.conv_bias)
            for name, width in convolved.items()
        }
        return Layout(
            {
                **projections,
                **convolutions,
                "log_rate": vector(self.n_heads),
                "step_bias": vector(self.n_heads, value=FIRST_STEP),
                "skip": vector(self.n_heads, value=1.0),
                "inner_norm": Layout({"weight": vector(inner, value=1.0)}),
                "o_proj": linear(inner, self.d_model, bias=self.bias, residual=True),
            },
            f"{self.kind} {heads_text(self.n_heads, self.n_heads, self.head_dim)}",
            state=self.state_size * inner + (self.kernel_size - 1) * (inner + 2 * vectors),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.mamba2 import Mamba2 as Module

        return Module(
            d_model=self.d_model,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            n_groups=self.n_groups,
            state_size=self.state_size,
            kernel_size=self.kernel_size,
            conv_bias=self.conv_bias,
            bias=self.bias,
            min_step=self.min_step,
            max_step=self.max_step,
            eps=self.eps,
        )
