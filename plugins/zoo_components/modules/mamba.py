"""The layer of Mamba (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.modules.convolution import CausalConvolution, convolved, hidden
from zoo_components.modules.decay import decayed_sums, in_graph
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State

CHUNK = 64
"""The number of tokens whose states are held at once, if no gradients are computed."""


class Mamba(Recurrent):
    """o_proj(gate * y) with y_t = C_t h_t + skip v_t for each channel, where
    h_t = exp(-d_t exp(log_rate)) h_(t-1) + d_t v_t B_t. With `n_heads`, the channels are those of
    so many heads, each with its own maps to the steps, B and C."""

    def __init__(
        self,
        *,
        d_model: int,
        d_inner: int,
        state_size: int,
        step_rank: int,
        kernel_size: int,
        conv_bias: bool,
        bias: bool,
        n_heads: int | None = None,
        step_norm: nn.Module,
        b_norm: nn.Module,
        c_norm: nn.Module,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_inner, bias=bias)
        self.v_proj = Linear(d_model, d_inner, bias=bias)
        self.v_conv = CausalConvolution(d_inner, kernel_size, bias=conv_bias)
        self.n_heads = n_heads
        channels = (d_inner,) if n_heads is None else (n_heads, d_inner // n_heads)

        def of_each_head(n_in: int, n_out: int) -> nn.Module:
            if n_heads is None:
                return Linear(n_in, n_out, bias=False)
            return LinearOfHeads(n_heads, n_in, n_out)

        self.step_a_proj = of_each_head(channels[-1], step_rank)
        self.b_proj = of_each_head(channels[-1], state_size)
        self.c_proj = of_each_head(channels[-1], state_size)
        self.step_norm, self.b_norm, self.c_norm = step_norm, b_norm, c_norm
        self.step_proj = of_each_head(step_rank, channels[-1])
        self.step_bias = nn.Parameter(torch.empty(channels))
        self.log_rate = nn.Parameter(torch.empty(*channels, state_size))
        self.skip = nn.Parameter(torch.ones(channels))
        self.o_proj = Linear(d_inner, d_model, bias=bias)

    def extra_repr(self) -> str:
        """The channels and the states, as `print(model)` shows them: `64 channels of 16 states`, or
        `2 heads of 32 channels of 16 states`."""
        *heads, channels, state_size = self.log_rate.shape
        told = f"{channels} channels of {state_size} states"
        return f"{heads[0]} heads of {told}" if heads else told

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last inputs of the convolution, and the states."""
        v, gate = together([self.v_proj, self.gate_proj], x)
        (v,), after = convolved([self.v_conv], [v], seen, before)
        if self.n_heads is not None:
            v = split_heads(v, v.shape[-1] // self.n_heads)
            seen = None if seen is None else seen[..., None, :]
        step, b, c = together([self.step_a_proj, self.b_proj, self.c_proj], v.to(x.dtype))
        step = widen(self.step_proj(self.step_norm(step))) + widen(self.step_bias)[..., None, :]
        step = hidden(F.softplus(step), seen)
        b, c = widen(self.b_norm(b)), widen(self.c_norm(c))
        # What autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            rate = widen(self.log_rate).exp()
            y, state = scan(step, v, b, c, rate, None if before is None else before[1])
            y = torch.addcmul(y, widen(self.skip)[..., None, :], v)
            if self.n_heads is not None:
                y = merge_heads(y)
            y = y * F.silu(widen(gate))
        return self.o_proj(y.to(x.dtype)), [*after, state]


class LinearOfHeads(nn.Module):
    """A linear map for each head, without biases."""

    def __init__(self, n_heads: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads, n_out, n_in))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., heads, length, n_in) to (..., heads, length, n_out)."""
        return x @ self.weight.mT


def scan(
    step: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    rate: torch.Tensor,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over the states of c_t h_t, with h_t = exp(-step_t rate) h_(t-1) + step_t v_t b_t.

    Rates differ from state to state, so that a chunk of tokens is no product of matrices as in
    Mamba-2: the states are made one token after the other.

    Args:
        step: (..., length, channels).
        v: (..., length, channels).
        b: (..., length, states).
        c: (..., length, states).
        rate: (channels, states), or (heads, channels, states) where the dimension before the length
            is that of the heads.
        state: h before the first token, (..., channels, states); None if it is zero.

    Returns:
        What the tokens read, (..., length, channels), and h after the last one.
    """
    values = step * v
    if in_graph():
        return _scan_in_graph(step, values, b, c, rate, state)
    if state is None:
        state = step.new_zeros(*step.shape[:-2], *rate.shape[-2:])
    read = [v[..., :0, :]]
    for start in range(0, step.shape[-2], CHUNK):
        of_chunk = (..., slice(start, start + CHUNK), slice(None))
        decay = torch.exp(-step[of_chunk][..., None] * rate.unsqueeze(-3))
        added = values[of_chunk][..., None] * b[of_chunk][..., None, :]
        states = []
        for kept, new in zip(decay.unbind(-3), added.unbind(-3), strict=True):
            state = torch.addcmul(new, kept, state)
            states.append(state)
        read.append((torch.stack(states, -3) @ c[of_chunk][..., None]).squeeze(-1))
    return torch.cat(read, -2), state


def _scan_in_graph(
    step: torch.Tensor,
    values: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    rate: torch.Tensor,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `scan`, of `values` = step * v and for any number of tokens: all pairs of tokens are
    computed, for each of the states of a channel."""
    values, decay = values.mT[..., None], -step.mT
    read, after = torch.zeros_like(values), []
    for n in range(rate.shape[-1]):
        before = None if state is None else state[..., n, None, None]
        q, k = (one[..., None, :, n, None] for one in (c, b))
        found, left = decayed_sums(q, k, values, decay * rate[..., n, None], before)
        read = read + found
        after.append(left[..., 0])
    return read.squeeze(-1).mT, torch.cat(after, -1)
