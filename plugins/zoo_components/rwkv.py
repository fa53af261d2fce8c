"""The two mixers of a layer of RWKV-4, in the `attention` slot."""

from math import log
from typing import TYPE_CHECKING

from pydantic import Field

from zoo.component import Shared, Size
from zoo.layout import Layout, linear, vector
from zoo_components.recurrent import FIRST_RATE, Recurrent

if TYPE_CHECKING:
    from torch import nn

FIRST_MIX = 0.5
"""The share of the token itself at the start, beside that of the token before it."""
FIRST_BONUS = log(0.3)
"""The bonus of the token itself at the start."""


class TimeMixing(Recurrent):
    """Time mixing of RWKV-4 (Peng et al. 2023, arXiv:2305.13048):
    o_proj(sigmoid(r) * wkv), where each channel is a mean of the values of a token and those before
    it: wkv_t = (sum_i exp(k_i - (t - 1 - i) w) v_i + exp(bonus + k_t) v_t) / (the same sum without
    values), over i < t, with the decay w = exp(log_rate). Keys, values and r are maps, k_proj,
    v_proj and gate_proj, of the token shift mix * x_t + (1 - mix) * x_(t-1), each with a `mix` of
    its own for each channel. Generation keeps both sums, the logarithm that they are scaled by so
    that exponentials do not overflow, and the last token."""

    d_inner: Size = Field(default_factory=lambda data: data["d_model"])
    """The number of channels that are mixed; d_model by default."""

    def layout(self) -> Layout:
        inner = self.d_inner
        mix, to = vector(self.d_model, value=FIRST_MIX), linear(self.d_model, inner, bias=False)
        return Layout(
            {
                **{f"{name}_mix": mix for name in ("k", "v", "gate")},
                **{f"{name}_proj": to for name in ("k", "v", "gate")},
                "log_rate": vector(inner, value=log(FIRST_RATE)),
                "bonus": vector(inner, value=FIRST_BONUS),
                "o_proj": linear(inner, self.d_model, bias=False, residual=True),
            },
            state=self.d_model + 3 * inner,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.rwkv import TimeMixing as Module

        return Module(d_model=self.d_model, d_inner=self.d_inner)


class ChannelMixing(Recurrent):
    """Channel mixing of RWKV-4 (Peng et al. 2023, arXiv:2305.13048), a feed-forward network that
    also reads the token before: sigmoid(gate_proj(r)) * down_proj(relu(up_proj(k))^2), where k and
    r are the token shifts mix * x_t + (1 - mix) * x_(t-1), each with a `mix` of its own for each
    channel. Generation keeps the last token. In the block `two_mixers`, it follows another
    mixer."""

    d_ff: Shared[Size]
    """The inner width."""

    def layout(self) -> Layout:
        width, mix = self.d_model, vector(self.d_model, value=FIRST_MIX)
        return Layout(
            {
                "up_mix": mix,
                "gate_mix": mix,
                "up_proj": linear(width, self.d_ff, bias=False),
                "gate_proj": linear(width, width, bias=False),
                "down_proj": linear(self.d_ff, width, bias=False, residual=True),
            },
            f"d_ff {self.d_ff}",
            state=width,
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.rwkv import ChannelMixing as Module

        return Module(d_model=self.d_model, d_ff=self.d_ff)
