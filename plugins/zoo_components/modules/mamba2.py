"""The layer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.heads import heads_text
from zoo_components.modules.convolution import CausalConvolution, convolved, hidden
from zoo_components.modules.decay import decayed_sums
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State


class Mamba2(Recurrent):
    """o_proj(inner_norm(gate * y)), where y_t = C_t S_t + skip x_t for each head, with
    S_t = exp(-d_t exp(log_rate)) S_(t-1) + d_t B_t x_t^T; with `norm_first`,
    o_proj(gate * inner_norm(y)). `scales` multiply what the maps to x, B, C, the gate and the step
    compute."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        n_groups: int,
        state_size: int,
        kernel_size: int,
        conv_bias: bool,
        bias: bool,
        min_step: float | None,
        max_step: float | None,
        eps: float | None,
        norm_first: bool,
        scales: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.norm_first, self.scales = norm_first, scales
        self.n_heads, self.head_dim = n_heads, head_dim
        self.min_step, self.max_step = min_step, max_step
        self.n_groups, self.state_size = n_groups, state_size
        inner, vectors = n_heads * head_dim, n_groups * state_size
        self.gate_proj = Linear(d_model, inner, bias=bias)
        self.v_proj = Linear(d_model, inner, bias=bias)
        self.b_proj = Linear(d_model, vectors, bias=bias)
        self.c_proj = Linear(d_model, vectors, bias=bias)
        self.step_proj = Linear(d_model, n_heads, bias=bias)
        self.v_conv = CausalConvolution(inner, kernel_size, bias=conv_bias)
        self.b_conv = CausalConvolution(vectors, kernel_size, bias=conv_bias)
        self.c_conv = CausalConvolution(vectors, kernel_size, bias=conv_bias)
        self.log_rate = nn.Parameter(torch.empty(n_heads))
        self.step_bias = nn.Parameter(torch.empty(n_heads))
        self.skip = nn.Parameter(torch.ones(n_heads))
        self.inner_norm = None if eps is None else GroupedRmsNorm(inner, n_groups, eps=eps)
        self.o_proj = Linear(inner, d_model, bias=bias)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `24 heads of 64`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last inputs of the convolutions, and those of the
        heads."""
        maps = [self.v_proj, self.b_proj, self.c_proj, self.gate_proj, self.step_proj]
        *inputs, gate, step = map(scaled, together(maps, x), self.scales)
        convolutions = (self.v_conv, self.b_conv, self.c_conv)
        mixed, after = convolved(convolutions, inputs, seen, before)
        step = F.softplus(widen(step) + widen(self.step_bias))
        if not (self.min_step is None and self.max_step is None):
            step = step.clamp(self.min_step, self.max_step)
        step = hidden(step, seen)
        groups = (self.n_groups, -1)
        heads = split_heads(mixed[0], self.head_dim)
        v = (step.transpose(-1, -2)[..., None] * heads).unflatten(-3, groups)
        log_decay = (-step * widen(self.log_rate).exp()).transpose(-1, -2).unflatten(-2, groups)
        b, c = (split_heads(t, self.state_size).unsqueeze(-3) for t in mixed[1:])
        # Products that autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            state = None if before is None else before[3]
            read, state = decayed_sums(c, b, v, log_decay, state)
        y = merge_heads(read.flatten(-4, -3) + widen(self.skip)[:, None, None] * heads)
        return self.o_proj(self.gated(y, F.silu(widen(gate))).to(x.dtype)), [*after, state]

    def gated(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """gate * y, normalised, for both (..., length, n_heads * head_dim)."""
        if self.inner_norm is None:
            return y * gate
        return self.inner_norm(y) * gate if self.norm_first else self.inner_norm(y * gate)


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """factor * x."""
    return x if factor == 1.0 else x * factor


class GroupedRmsNorm(nn.Module):
    """weight * x / sqrt(mean(x**2) + eps), where each of equal groups of channels has a mean of its
    own."""

    def __init__(self, width: int, n_groups: int, *, eps: float) -> None:
        super().__init__()
        self.n_groups, self.eps = n_groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def extra_repr(self) -> str:
        """The width, the groups and `eps`, as `print(model)` shows them."""
        return f"{self.weight.shape[0]}, n_groups={self.n_groups}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width), in float32 or wider."""
        groups = widen(x).unflatten(-1, (self.n_groups, -1))
        normed = F.rms_norm(groups, groups.shape[-1:], None, self.eps)
        return normed.flatten(-2) * widen(self.weight)
