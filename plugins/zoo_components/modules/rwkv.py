"""The two mixers of a layer of RWKV-4 (Peng et al. 2023, arXiv:2305.13048)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear
from zoo_components.modules.convolution import hidden
from zoo_components.modules.decay import fading_maxima, fading_sums
from zoo_components.modules.norm import widen
from zoo_components.modules.recurrent import Recurrent, State


class TimeMixing(Recurrent):
    """o_proj(sigmoid(r) * wkv), where wkv_t is (a_(t-1) + exp(bonus + k_t) v_t) /
    (b_(t-1) + exp(bonus + k_t)) for each channel, with a_t = exp(-w) a_(t-1) + exp(k_t) v_t and
    b_t = exp(-w) b_(t-1) + exp(k_t). Both are kept divided by exp(m_t),
    m_t = max(m_(t-1) - w, k_t)."""

    def __init__(self, *, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.k_mix = nn.Parameter(torch.empty(d_model))
        self.v_mix = nn.Parameter(torch.empty(d_model))
        self.gate_mix = nn.Parameter(torch.empty(d_model))
        self.k_proj = Linear(d_model, d_inner, bias=False)
        self.v_proj = Linear(d_model, d_inner, bias=False)
        self.gate_proj = Linear(d_model, d_inner, bias=False)
        self.log_rate = nn.Parameter(torch.empty(d_inner))
        self.bonus = nn.Parameter(torch.empty(d_inner))
        self.o_proj = Linear(d_inner, d_model, bias=False)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last token, a and b side by side, and m, which is
        -inf before the first token."""
        last, sums, first = before or (None, None, None)
        earlier, last = shifted(x, seen, last)
        k = widen(self.k_proj(mixed(x, earlier, self.k_mix)))
        v = widen(self.v_proj(mixed(x, earlier, self.v_mix)))
        gate = self.gate_proj(mixed(x, earlier, self.gate_mix))
        entering = k if seen is None else k.masked_fill(~seen[..., None], -torch.inf)
        fading = hidden(-widen(self.log_rate).exp().expand_as(k), seen)
        if first is None:
            first = torch.full_like(k[..., 0, :], -torch.inf) if k.shape[-2] else k.sum(-2)
        maxima = fading_maxima(entering.mT, fading.mT, first).mT
        scales = torch.cat([first[..., None, :], maxima], -2)
        # Where no token has been seen, the sums are 0, and any scale is as good.
        empty = scales == -torch.inf
        after = scales.masked_fill(empty, 0.0)
        log_decay = fading - after.diff(dim=-2)
        log_decay = log_decay.masked_fill(empty[..., :-1, :], 0.0)
        added = (entering - after[..., 1:, :]).exp()
        pair = torch.cat([added * v, added], -1)
        found = fading_sums(pair, torch.cat([log_decay, log_decay], -1), sums)
        if sums is None:
            sums = torch.zeros_like(pair.sum(-2))
        whole = torch.cat([sums[..., None, :], found], -2)
        a, b = whole[..., :-1, :].chunk(2, -1)
        own = k + widen(self.bonus)
        largest = torch.maximum(scales[..., :-1, :], own)
        old, new = (scales[..., :-1, :] - largest).exp(), (own - largest).exp()
        wkv = (old * a + new * v) / (old * b + new)
        output: torch.Tensor = self.o_proj((widen(gate).sigmoid() * wkv).to(x.dtype))
        return output, [last, whole[..., -1, :].clone(), scales[..., -1, :].clone()]


class ChannelMixing(Recurrent):
    """sigmoid(gate_proj(r)) * down_proj(relu(up_proj(k))^2)."""

    def __init__(self, *, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up_mix = nn.Parameter(torch.empty(d_model))
        self.gate_mix = nn.Parameter(torch.empty(d_model))
        self.up_proj = Linear(d_model, d_ff, bias=False)
        self.gate_proj = Linear(d_model, d_model, bias=False)
        self.down_proj = Linear(d_ff, d_model, bias=False)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last token."""
        earlier, last = shifted(x, seen, None if before is None else before[0])
        units = F.relu(self.up_proj(mixed(x, earlier, self.up_mix))).square()
        gate = self.gate_proj(mixed(x, earlier, self.gate_mix)).sigmoid()
        return gate * self.down_proj(units), [last]


def shifted(
    x: torch.Tensor, seen: torch.Tensor | None, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token before each of x (..., length, width), and the last one, (..., width), which is
    `before` for what comes next. Before the first one, and where a token is hidden, it is 0."""
    left = hidden(x, seen)
    first = torch.zeros_like(left[..., :0, :].sum(-2)) if before is None else before.to(x.dtype)
    whole = torch.cat([first[..., None, :], left], -2)
    return whole[..., :-1, :], whole[..., -1, :].clone()


def mixed(x: torch.Tensor, earlier: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """share * x + (1 - share) * earlier, channel by channel."""
    return torch.lerp(earlier, x, share.to(x.dtype))
