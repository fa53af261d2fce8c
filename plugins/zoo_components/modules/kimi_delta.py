"""Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.heads import heads_text
from zoo_components.modules.convolution import CausalConvolution, convolved, hidden
from zoo_components.modules.delta_rule import gated_delta_rule, unit
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State


class KimiDelta(Recurrent):
    """o_proj(gate * head_norm(o)), where o_t = S_t q_t for each head, with
    S_t = S_(t-1) diag(a_t) (1 - b_t k_t k_t^T) + b_t v_t k_t^T (section 3 of the paper, with S
    transposed)."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        kernel_size: int,
        head_norm: nn.Module,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        width = n_heads * head_dim
        self.q_proj = Linear(d_model, width, bias=False)
        self.k_proj = Linear(d_model, width, bias=False)
        self.v_proj = Linear(d_model, width, bias=False)
        self.decay_a_proj = Linear(d_model, head_dim, bias=False)
        self.decay_b_proj = Linear(head_dim, width, bias=False)
        self.gate_a_proj = Linear(d_model, head_dim, bias=False)
        self.gate_b_proj = Linear(head_dim, width, bias=False)
        self.beta_proj = Linear(d_model, n_heads, bias=False)
        self.q_conv = CausalConvolution(width, kernel_size, bias=False)
        self.k_conv = CausalConvolution(width, kernel_size, bias=False)
        self.v_conv = CausalConvolution(width, kernel_size, bias=False)
        self.log_rate = nn.Parameter(torch.empty(n_heads))
        self.rate_bias = nn.Parameter(torch.empty(width))
        self.head_norm = head_norm
        self.o_proj = Linear(width, d_model, bias=False)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `32 heads of 128`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last inputs of the convolutions, and those of the
        heads."""
        maps = [self.q_proj, self.k_proj, self.v_proj]
        maps += [self.decay_a_proj, self.gate_a_proj, self.beta_proj]
        *of_heads, decay, gate, beta = together(maps, x)
        convolutions = (self.q_conv, self.k_conv, self.v_conv)
        mixed, after = convolved(convolutions, of_heads, seen, before)
        step = F.softplus(widen(self.decay_b_proj(decay)) + widen(self.rate_bias))
        step, strength = (hidden(t, seen) for t in (step, widen(beta).sigmoid()))
        q, k, v, step = (split_heads(t, self.head_dim) for t in (*mixed, step))
        # Products that autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            q, k = unit(q) * self.head_dim**-0.5, unit(k)
            log_decay = -widen(self.log_rate).exp()[:, None, None] * step
            state = None if before is None else before[3]
            read, state = gated_delta_rule(q, k, v, log_decay, strength.transpose(-1, -2), state)
        normed = merge_heads(self.head_norm(read))
        gate = widen(self.gate_b_proj(gate)).sigmoid()
        return self.o_proj((normed * gate).to(x.dtype)), [*after, state]
