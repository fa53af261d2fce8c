"""Gated delta networks (Yang et al. 2024, arXiv:2412.06464)."""

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


class GatedDelta(Recurrent):
    """o_proj(gate * head_norm(o)), where o_t = S_t q_t for each head, with
    S_t = a_t S_(t-1) (1 - b_t k_t k_t^T) + b_t v_t k_t^T (equation 10 of the paper)."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_key_heads: int,
        head_dim: int,
        v_head_dim: int,
        kernel_size: int,
        max_strength: float,
        head_norm: nn.Module,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_key_heads = n_heads, n_key_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim
        self.max_strength = max_strength
        keys, values = n_key_heads * head_dim, n_heads * v_head_dim
        self.q_proj = Linear(d_model, keys, bias=False)
        self.k_proj = Linear(d_model, keys, bias=False)
        self.v_proj = Linear(d_model, values, bias=False)
        self.gate_proj = Linear(d_model, values, bias=False)
        self.decay_proj = Linear(d_model, n_heads, bias=False)
        self.beta_proj = Linear(d_model, n_heads, bias=False)
        self.q_conv = CausalConvolution(keys, kernel_size, bias=False)
        self.k_conv = CausalConvolution(keys, kernel_size, bias=False)
        self.v_conv = CausalConvolution(values, kernel_size, bias=False)
        self.log_rate = nn.Parameter(torch.empty(n_heads))
        self.rate_bias = nn.Parameter(torch.empty(n_heads))
        self.head_norm = head_norm
        self.o_proj = Linear(values, d_model, bias=False)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `32 over 16 heads of 128`."""
        return heads_text(self.n_heads, self.n_key_heads, self.head_dim)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is the last inputs of the convolutions, and those of the
        heads."""
        maps = [self.q_proj, self.k_proj, self.v_proj]
        maps += [self.gate_proj, self.decay_proj, self.beta_proj]
        *of_heads, gate, decay, beta = together(maps, x)
        convolutions = (self.q_conv, self.k_conv, self.v_conv)
        mixed, after = convolved(convolutions, of_heads, seen, before)
        rate = widen(self.log_rate).exp() * F.softplus(widen(decay) + widen(self.rate_bias))
        strength = self.max_strength * widen(beta).sigmoid()
        rate, beta = (hidden(t, seen) for t in (rate, strength))
        q, k = (unit(split_heads(t, self.head_dim)).unsqueeze(-3) for t in mixed[:2])
        groups = (self.n_key_heads, -1)
        v = split_heads(mixed[2], self.v_head_dim).unflatten(-3, groups)
        log_decay, beta = (t.transpose(-1, -2).unflatten(-2, groups) for t in (-rate, beta))
        # Products that autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            q = q * self.head_dim**-0.5
            state = None if before is None else before[3]
            read, state = gated_delta_rule(q, k, v, log_decay[..., None], beta, state)
        normed = merge_heads(self.head_norm(read.flatten(-4, -3)))
        return self.o_proj((normed * F.silu(widen(gate))).to(x.dtype)), [*after, state]
