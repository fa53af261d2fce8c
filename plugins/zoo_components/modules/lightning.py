"""Lightning attention (Li et al. 2025, arXiv:2501.08313, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.heads import heads_text
from zoo_components.modules.constant import Constant
from zoo_components.modules.convolution import hidden
from zoo_components.modules.decay import decayed_sums
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State


class Lightning(Recurrent):
    """o_proj(gate * inner_norm(o)), where o_t = S_t^T q_t for each head, with
    S_t = a S_(t-1) + k_t v_t^T and a fixed a."""

    def __init__(
        self, *, d_model: int, n_heads: int, head_dim: int, rate: float, inner_norm: nn.Module
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        inner = n_heads * head_dim
        self.q_proj = Linear(d_model, inner, bias=False)
        self.k_proj = Linear(d_model, inner, bias=False)
        self.v_proj = Linear(d_model, inner, bias=False)
        self.gate_proj = Linear(d_model, inner, bias=False)
        self.rates = Constant([rate * 2.0 ** (-8.0 * h / n_heads) for h in range(1, n_heads + 1)])
        self.inner_norm = inner_norm
        self.o_proj = Linear(inner, d_model, bias=False)

    def extra_repr(self) -> str:
        """The heads, as `print(model)` shows them: `64 heads of 128`."""
        return heads_text(self.n_heads, self.n_heads, self.head_dim)

    def table(self, n_heads: int) -> torch.Tensor:
        """The rates of the first heads, (n_heads, 1, 1) in float64: a table that some published
        checkpoints hold, to be compared with it."""
        rates = self.rates.on(torch.device("cpu"), torch.float64)
        return rates[:n_heads, None, None]

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """As in `Recurrent`; the state is that of the heads."""
        *of_heads, gate = together([self.q_proj, self.k_proj, self.v_proj, self.gate_proj], x)
        q, k, v = (F.silu(widen(one)) for one in of_heads)
        rates = self.rates.on(x.device, q.dtype).expand(x.shape[-2], self.n_heads)
        log_decay = -rates if seen is None else hidden(-rates, seen)
        q, k, v = (split_heads(one, self.head_dim) for one in (q, hidden(k, seen), v))
        # Products that autocast rounds would be lost in a sum over many tokens.
        with without_autocast(x):
            state = None if before is None else before[0]
            read, state = decayed_sums(q, k, v, log_decay.transpose(-1, -2), state)
        normed = self.inner_norm(merge_heads(read))
        return self.o_proj((normed * widen(gate).sigmoid()).to(x.dtype)), [state]
