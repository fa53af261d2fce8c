"""The matrix memory of xLSTM (Beck et al. 2024, arXiv:2405.04517, section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.heads import heads_text
from zoo_components.modules.convolution import hidden
from zoo_components.modules.decay import decayed_sums, fading_maxima
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State


class Mlstm(Recurrent):
    """o_proj(gate * inner_norm(h)), where h_t = C_t q_t / max(|n_t . q_t|, 1) for each head, with
    C_t = f_t C_(t-1) + i_t v_t k_t^T and n_t = f_t n_(t-1) + i_t k_t. Both are kept divided by
    exp(m_t), m_t = max(log f_t + m_(t-1), log i_t), so that nothing overflows, as in the
    LSTM with exponential gates of section 2.2."""

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        v_head_dim: int,
        gate_softcap: float | None,
        divisor_eps: float,
        eps: float,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.v_head_dim = n_heads, head_dim, v_head_dim
        self.gate_softcap, self.divisor_eps = gate_softcap, divisor_eps
        keys, values = n_heads * head_dim, n_heads * v_head_dim
        self.q_proj = Linear(d_model, keys, bias=False)
        self.k_proj = Linear(d_model, keys, bias=False)
        self.v_proj = Linear(d_model, values, bias=False)
        self.gate_proj = Linear(d_model, values, bias=False)
        self.in_gate = Linear(d_model, n_heads)
        self.forget_gate = Linear(d_model, n_heads)
        self.inner_norm = LayerNormOfHeads(values, n_heads, eps=eps)
        self.o_proj = Linear(values, d_model, bias=False)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `8 heads of 256`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is that of the heads, C^T and n side by side, and the
        logarithm of what they are divided by."""
        maps = [self.q_proj, self.k_proj, self.v_proj, self.gate_proj]
        q, k, v, gate, *gates = together([*maps, self.in_gate, self.forget_gate], x)
        log_in, log_forget = (widen(self.capped(one)) for one in gates)
        log_forget = hidden(F.logsigmoid(log_forget), seen)
        if seen is not None:
            log_in = log_in.masked_fill(~seen[..., None], -torch.inf)
        log_in, log_forget = log_in.transpose(-1, -2), log_forget.transpose(-1, -2)
        q, k = (split_heads(widen(one), self.head_dim) for one in (q, k))
        v = split_heads(widen(v), self.v_head_dim)
        # Products that autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            state, first = (None, log_in.new_zeros(())) if before is None else before
            first = first.expand(log_in.shape[:-1])
            log_scale = fading_maxima(log_in, log_forget, first)
            scales = torch.cat([first[..., None], log_scale], -1)
            log_decay = log_forget - scales.diff(dim=-1)
            entering = k * (log_in - log_scale).exp()[..., None]
            with_ones = torch.cat([v, torch.ones_like(v[..., :1])], -1)
            q = q * self.head_dim**-0.5
            read, state = decayed_sums(q, entering, with_ones, log_decay, state)
        least = (-log_scale).exp()[..., None]
        divisor = torch.maximum(read[..., -1:].abs(), least) + self.divisor_eps
        normed = self.inner_norm(merge_heads(read[..., :-1] / divisor))
        output: torch.Tensor = self.o_proj((normed * widen(gate).sigmoid()).to(x.dtype))
        return output, [state, scales[..., -1].clone()]

    def capped(self, x: torch.Tensor) -> torch.Tensor:
        """gate_softcap * tanh(x / gate_softcap)."""
        cap = self.gate_softcap
        return x if cap is None else cap * torch.tanh(x / cap)


class LayerNormOfHeads(nn.Module):
    """weight * (x - mean) / sqrt(variance + eps), where each head has a mean and a variance of its
    own."""

    def __init__(self, width: int, n_heads: int, *, eps: float) -> None:
        super().__init__()
        self.n_heads, self.eps = n_heads, eps
        self.weight = nn.Parameter(torch.ones(width))

    def extra_repr(self) -> str:
        """The width, the heads and `eps`, as `print(model)` shows them."""
        return f"{self.weight.shape[0]}, n_heads={self.n_heads}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width), in float32 or wider."""
        heads = widen(x).unflatten(-1, (self.n_heads, -1))
        normed = F.layer_norm(heads, heads.shape[-1:], None, None, self.eps)
        return normed.flatten(-2) * widen(self.weight)
