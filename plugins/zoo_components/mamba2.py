"""The layer of Mamba-2, in the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Shared, Size, contradiction
from zoo.layout import Layout, linear, vector
from zoo.only_with import UNSTATED, NotWith
from zoo_components.convolution import convolution
from zoo_components.heads import check_divisible, heads_text
from zoo_components.recurrent import FIRST_STEP, Recurrent

if TYPE_CHECKING:
    from torch import nn

    from zoo_components.modules.mamba2 import Mamba2 as Module

GatedNorm = Literal["after_gate", "before_gate", "none"]


def _head_dim(data: dict[str, Any]) -> int:
    """2 d_model / n_heads, of the fields before `head_dim`."""
    return max(1, 2 * data["d_model"] // data["n_heads"])


class StateSpace(Recurrent):
    """The common base of the layers of Mamba-2."""

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "head_dim" not in self.model_fields_set and 2 * self.d_model % self.n_heads:
            raise contradiction(
                f"2 d_model = {2 * self.d_model} is not divisible by n_heads = {self.n_heads}; "
                "state `head_dim`, or change one of the two",
                "n_heads",
                "d_model",
            )
        check_divisible(n_heads=self.n_heads, n_groups=self.n_groups)
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
            f"{name}_conv": convolution(
                width, width, self.kernel_size, bias=self.conv_bias, groups=width
            )
            for name, width in convolved.items()
        }
        return Layout(
            {
                **projections,
                **convolutions,
                "log_rate": vector(self.n_heads),
                "step_bias": vector(self.n_heads, value=FIRST_STEP),
                "skip": vector(self.n_heads, value=1.0),
                **self._norm_parts(inner),
                "o_proj": linear(inner, self.d_model, bias=self.bias, residual=True),
            },
            heads_text(self.n_heads, self.n_heads, self.head_dim),
            state=self.state_size * inner + (self.kernel_size - 1) * (inner + 2 * vectors),
        )

    def _norm_parts(self, width: int) -> dict[str, Layout]:
        return {"inner_norm": Layout({"weight": vector(width, value=1.0)})}

    def _module(
        self,
        eps: float | None,
        *,
        norm_first: bool = False,
        scales: tuple[float, ...] = (1.0,) * 5,
    ) -> "Module":
        """The module; without `eps`, it has no norm. `norm_first` and `scales` are as there."""
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
            eps=eps,
            norm_first=norm_first,
            scales=scales,
        )


class Mamba2(StateSpace):
    """The layer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): each head has a state S, which a
    token with the value x, the step d and the vectors B and C turns into
    exp(-d exp(log_rate)) S + d B x^T, and reads as C S + skip x. Values, B and C go through a short
    convolution and SiLU, the step is softplus(step_proj(x) + step_bias), and what all heads read is
    multiplied with silu(gate_proj(x)) and normalised. Whole sequences are computed in chunks, as
    products of matrices. Generation keeps the states, and the last inputs of the convolutions."""

    eps: PositiveFloat = 1e-5
    """Added to the mean of squares, inside the root of the norm (RMSNorm: Zhang and Sennrich 2019,
    arXiv:1910.07467) after the gate. What the heads of a group read is normalised as one vector,
    with a weight for each channel."""

    def build(self) -> "nn.Module":
        return self._module(self.eps)


class ScaledMamba2(StateSpace):
    """The layer `mamba2` with a factor for what each map computes, and a choice of its norm, as in
    Falcon-H1 (Zuo et al. 2025, arXiv:2507.22448), whose factors are those of muP (Yang et al. 2022,
    arXiv:2203.03466)."""

    gate_scale: PositiveFloat = 1.0
    """What gate_proj(x) is multiplied with, bias included; the others likewise."""
    v_scale: PositiveFloat = 1.0
    """The factor of the values."""
    b_scale: PositiveFloat = 1.0
    """The factor of the vectors B."""
    c_scale: PositiveFloat = 1.0
    """The factor of the vectors C."""
    step_scale: PositiveFloat = 1.0
    """The factor of step_proj(x), to which step_bias is added."""
    gated_norm: GatedNorm = "none"
    """Whether what the heads read is normalised after the multiplication with the gate, as in
    `mamba2`, before it, or not at all (`none`)."""
    eps: Annotated[PositiveFloat | None, NotWith("gated_norm", "none", default=1e-5)] = UNSTATED
    """Added to the mean of squares, inside the root of the norm (RMSNorm: Zhang and Sennrich 2019,
    arXiv:1910.07467). What the heads of a group read is normalised as one vector, with a weight for
    each channel."""

    def _norm_parts(self, width: int) -> dict[str, Layout]:
        return {} if self.gated_norm == "none" else super()._norm_parts(width)

    def build(self) -> "nn.Module":
        names = ("v", "b", "c", "gate", "step")
        return self._module(
            self.eps,
            norm_first=self.gated_norm == "before_gate",
            scales=tuple(getattr(self, f"{name}_scale") for name in names),
        )
