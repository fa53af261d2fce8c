"""The recurrent block of Griffin (De et al. 2024, arXiv:2402.19427)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.modules.convolution import CausalConvolution, hidden
from zoo_components.modules.decay import fading_sums
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen
from zoo_components.modules.recurrent import Recurrent, State


class RgLru(Recurrent):
    """o_proj(activation(gate_proj(x)) * h) with h_t = a_t h_(t-1) + sqrt(1 - a_t^2) i_t u_t and
    u = conv(v_proj(x)), where a_t = exp(-sharpness softplus(rate) sigmoid(rate_gate(u_t))) and
    i_t = sigmoid(in_gate(u_t)). The first token enters without the root."""

    def __init__(
        self,
        *,
        d_model: int,
        d_inner: int,
        n_blocks: int,
        kernel_size: int,
        activation: nn.Module,
        bias: bool,
        sharpness: float,
    ) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.v_proj = Linear(d_model, d_inner, bias=bias)
        self.gate_proj = Linear(d_model, d_inner, bias=bias)
        self.conv = CausalConvolution(d_inner, kernel_size, bias=bias)
        self.in_gate = BlockLinear(d_inner, n_blocks, bias=bias)
        self.rate_gate = BlockLinear(d_inner, n_blocks, bias=bias)
        self.rate = nn.Parameter(torch.empty(d_inner))
        self.activation = activation
        self.o_proj = Linear(d_inner, d_model, bias=bias)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last inputs of the convolution, that of the
        channels, and the number of tokens that were seen."""
        inputs, state, earlier = before or (None, None, 0.0)
        v, gate = together([self.v_proj, self.gate_proj], x)
        u, inputs = self.conv(hidden(v, seen), inputs)
        rate = self.sharpness * F.softplus(widen(self.rate))
        log_decay = -rate * widen(self.rate_gate(u)).sigmoid()
        entering = widen(u) * widen(self.in_gate(u)).sigmoid()
        counted = torch.ones_like(x[..., 0]) if seen is None else seen
        n_seen = earlier + widen(counted).cumsum(-1)
        # A hidden token may be taken for the first one, and is left out all the same.
        entering = entering.where(n_seen[..., None] == 1, entering * complement(log_decay))
        states = fading_sums(hidden(entering, seen), hidden(log_decay, seen), state)
        output: torch.Tensor = self.o_proj(self.activation(gate) * states.to(x.dtype))
        return output, [inputs, states[..., -1, :].clone(), n_seen[..., -1:].clone()]


def complement(log_decay: torch.Tensor) -> torch.Tensor:
    """sqrt(1 - a^2) of the logarithm of a, with a gradient also where a is rounded to 1."""
    tiny = torch.finfo(log_decay.dtype).tiny
    return (-torch.expm1(2 * log_decay)).clamp_min(tiny).sqrt()


class BlockLinear(nn.Module):
    """A linear map whose matrix has blocks on its diagonal, (blocks, n_out, n_in), and is 0
    elsewhere."""

    def __init__(self, width: int, n_blocks: int, *, bias: bool) -> None:
        super().__init__()
        n = width // n_blocks
        self.weight = nn.Parameter(torch.empty(n_blocks, n, n))
        self.bias = nn.Parameter(torch.empty(n_blocks, n)) if bias else None

    def extra_repr(self) -> str:
        """The blocks, as `print(model)` shows them: `10 blocks of 256, bias=True`."""
        n_blocks, n, _ = self.weight.shape
        return f"{n_blocks} blocks of {n}, bias={self.bias is not None}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., length, width) to the same."""
        y = split_heads(x, self.weight.shape[-1]) @ self.weight.mT
        return merge_heads(y if self.bias is None else y + self.bias[:, None])
