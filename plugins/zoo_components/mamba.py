"""The layers of Mamba, in the `attention` slot."""

from math import ceil
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from zoo.component import Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear, vector
from zoo.slots import Norm
from zoo_components.convolution import convolution
from zoo_components.norm import NoNorm, of_width
from zoo_components.recurrent import FIRST_STEP, Recurrent

if TYPE_CHECKING:
    from torch import nn


class Mamba(Recurrent):
    """The selective state space layer of Mamba (Gu and Dao 2023, arXiv:2312.00752): each channel
    has `state_size` states h, which a token with the value x, the steps d and the vectors B and C
    turns into exp(-d exp(log_rate)) h + d x B, and reads as the sum of C h, plus skip x. Values go
    through a short convolution and SiLU; steps, B and C are linear maps of the result, and steps
    are the softplus of step_proj(step_a_proj(x)). What is read is multiplied with
    silu(gate_proj(x)). The tokens are gone through one by one, also in training: `mamba2`, which
    has one rate for a head, computes whole chunks. Generation keeps the states, and the last inputs
    of the convolution. All rates start at 1, where the paper starts those of a channel at 1, 2, 3
    and so on."""

    d_inner: Shared[Size] = Field(default_factory=lambda data: 2 * data["d_model"])
    """The number of channels; 2 d_model by default."""
    state_size: Size = 16
    """The number of states of a channel, which is the width of B and C."""
    step_rank: Size = Field(default_factory=lambda data: ceil(data["d_model"] / 16))
    """The width of the latent that the steps of all channels are made from; d_model / 16 by
    default, rounded up."""
    kernel_size: Size = 4
    """The number of tokens that the convolution reads, the token itself included."""
    conv_bias: bool = True
    """Whether the convolution has a bias."""
    bias: Shared[bool] = False
    """Whether the maps from and to the model's width have a bias."""
    latent_norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="step_rank")] = (
        Field(default_factory=lambda data: NoNorm(kind="none", width=data["step_rank"]))
    )
    """The norm of the latent of the steps, of B and of C, each by itself (Jamba, Lieber et al.
    2024, arXiv:2403.19887)."""

    def _norms(self) -> dict[str, Norm]:
        of_states = of_width(self.latent_norm, self.state_size)
        return {"step_norm": self.latent_norm, "b_norm": of_states, "c_norm": of_states}

    def _from_channels(self, width: int) -> Layout:
        """The map from the channels to the latent of the steps, to B or to C."""
        return linear(self.d_inner, width, bias=False)

    def _steps(self) -> dict[str, Layout | Tensor]:
        """What makes the steps of their latent, and the rates and skips of the channels."""
        inner = self.d_inner
        return {
            "step_proj": linear(self.step_rank, inner, bias=False),
            "step_bias": vector(inner, value=FIRST_STEP),
            "log_rate": Tensor((inner, self.state_size), "constant"),
            "skip": vector(inner, value=1.0),
        }

    @property
    def _channels(self) -> str:
        return f"{self.d_inner} channels of {self.state_size} states"

    def layout(self) -> Layout:
        inner, states = self.d_inner, self.state_size
        norms = {name: norm.layout() for name, norm in self._norms().items()}
        return Layout(
            {
                "gate_proj": linear(self.d_model, inner, bias=self.bias),
                "v_proj": linear(self.d_model, inner, bias=self.bias),
                "v_conv": convolution(
                    inner, inner, self.kernel_size, bias=self.conv_bias, groups=inner
                ),
                "step_a_proj": self._from_channels(self.step_rank),
                "b_proj": self._from_channels(states),
                "c_proj": self._from_channels(states),
                **{name: norm for name, norm in norms.items() if norm.parts},
                **self._steps(),
                "o_proj": linear(inner, self.d_model, bias=self.bias, residual=True),
            },
            self._channels,
            state=inner * (states + self.kernel_size - 1),
        )

    def build(self) -> "nn.Module":
        return self._module(None)

    def _module(self, n_heads: int | None) -> "nn.Module":
        from zoo_components.modules.mamba import Mamba as Module

        return Module(
            d_model=self.d_model,
            d_inner=self.d_inner,
            state_size=self.state_size,
            step_rank=self.step_rank,
            kernel_size=self.kernel_size,
            conv_bias=self.conv_bias,
            bias=self.bias,
            n_heads=n_heads,
            **{name: norm.build() for name, norm in self._norms().items()},
        )


class MultiHeadMamba(Mamba):
    """The layer `mamba` with heads, each of which makes the steps, B and C of its own channels, by
    maps of its own (Zamba: Glorioso et al. 2024, arXiv:2405.16712)."""

    n_heads: Shared[Size]
    """The number of heads, each of d_inner / n_heads channels."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.d_inner % self.n_heads:
            raise contradiction(
                f"d_inner = {self.d_inner} is not divisible by n_heads = {self.n_heads}",
                "n_heads",
                "d_inner",
            )
        return self

    @property
    def _head_channels(self) -> int:
        return self.d_inner // self.n_heads

    def _of_each_head(self, n_in: int, n_out: int) -> Layout:
        return Layout({"weight": Tensor((self.n_heads, n_out, n_in), fan_in=n_in, fan_out=n_out)})

    def _from_channels(self, width: int) -> Layout:
        return self._of_each_head(self._head_channels, width)

    def _steps(self) -> dict[str, Layout | Tensor]:
        of_channels = (self.n_heads, self._head_channels)
        return {
            "step_proj": self._of_each_head(self.step_rank, self._head_channels),
            "step_bias": Tensor(of_channels, "constant", FIRST_STEP),
            "log_rate": Tensor((*of_channels, self.state_size), "constant"),
            "skip": Tensor(of_channels, "constant", 1.0),
        }

    @property
    def _channels(self) -> str:
        heads, channels = self.n_heads, self._head_channels
        return f"{heads} heads of {channels} channels of {self.state_size} states"

    def build(self) -> "nn.Module":
        return self._module(self.n_heads)
