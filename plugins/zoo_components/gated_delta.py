"""Gated delta networks, in the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Shared, Size, Slot
from zoo.layout import Layout, linear, vector
from zoo.slots import Norm
from zoo_components.convolution import convolution
from zoo_components.heads import (
    check_default_head_dim,
    check_divisible,
    default_head_dim,
    heads_text,
)
from zoo_components.norm import RmsNorm
from zoo_components.recurrent import FIRST_STEP, Recurrent

if TYPE_CHECKING:
    from torch import nn


class GatedDelta(Recurrent):
    """A gated delta network (Yang et al. 2024, arXiv:2412.06464): each head has a state S that maps
    keys to values. A token with the key k, the value v, the decay a and the strength b turns it
    into a S (1 - b k k^T) + b v k^T, which replaces what k was mapped to, and reads S q. Queries,
    keys and values go through a short convolution and SiLU, queries and keys have length 1, and
    what is read is normalised and multiplied with a gate. The decay is
    exp(-exp(log_rate) * softplus(decay_proj(x) + rate_bias)), the strength
    max_strength * sigmoid(beta_proj(x)), the gate silu(gate_proj(x)). Generation keeps the states,
    and the last inputs of the convolutions."""

    n_heads: Shared[Size]
    """The number of heads, each with a state, a value, a decay and a strength."""
    n_key_heads: Size = Field(default_factory=lambda data: data["n_heads"])
    """The number of heads of queries and keys; each serves n_heads / n_key_heads heads."""
    head_dim: Shared[Size] = Field(default_factory=default_head_dim)
    """The width of a query and key head; d_model / n_heads by default."""
    v_head_dim: Size = Field(default_factory=lambda data: data["head_dim"])
    """The width of a value head."""
    kernel_size: Size = 4
    """The number of tokens that the convolutions read, the token itself included."""
    max_strength: PositiveFloat | None = Field(default=None, le=2)
    """The upper bound of the strengths; by default 1. Above 1, up to 2, what a key is mapped to may
    change its sign, so that states can count and swap (Grazzi et al. 2024, arXiv:2411.12537)."""
    head_norm: Annotated[
        Norm, Slot("norm", default="rms_norm", inherit=False, width="v_head_dim")
    ] = Field(default_factory=lambda data: RmsNorm(kind="rms_norm", width=data["v_head_dim"]))
    """The norm of what each head reads, before the gate."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_default_head_dim(self, self.n_heads)
        check_divisible(n_heads=self.n_heads, n_key_heads=self.n_key_heads)
        return self

    @property
    def _widths(self) -> dict[str, int]:
        """The widths of all heads together."""
        keys, values = self.n_key_heads * self.head_dim, self.n_heads * self.v_head_dim
        return {"q": keys, "k": keys, "v": values}

    def layout(self) -> Layout:
        of_heads = self._widths
        values = of_heads["v"]
        maps = of_heads | {"gate": values, "decay": self.n_heads, "beta": self.n_heads}
        projections = {
            f"{name}_proj": linear(self.d_model, width, bias=False) for name, width in maps.items()
        }
        convolutions = {
            f"{name}_conv": convolution(width, width, self.kernel_size, bias=False, groups=width)
            for name, width in of_heads.items()
        }
        return Layout(
            {
                **projections,
                **convolutions,
                "log_rate": vector(self.n_heads),
                "rate_bias": vector(self.n_heads, value=FIRST_STEP),
                "head_norm": self.head_norm.layout(),
                "o_proj": linear(values, self.d_model, bias=False, residual=True),
            },
            heads_text(self.n_heads, self.n_key_heads, self.head_dim),
            state=self.n_heads * self.head_dim * self.v_head_dim
            + (self.kernel_size - 1) * sum(of_heads.values()),
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.gated_delta import GatedDelta as Module

        return Module(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_key_heads=self.n_key_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            kernel_size=self.kernel_size,
            max_strength=1.0 if self.max_strength is None else self.max_strength,
            head_norm=self.head_norm.build(),
        )
