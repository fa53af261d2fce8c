"""Gated delta networks (Yang et al. 2024, arXiv:2412.06464)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, together
from zoo_components.heads import heads_text
from zoo_components.modules.convolution import CausalConvolution, convolved, hidden
from zoo_components.modules.decay import between, chunks
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.norm import widen, without_autocast
from zoo_components.modules.recurrent import Recurrent, State

CHUNK = 64
"""The number of tokens that are computed as products of matrices, between two states. Any number
gives the same up to rounding."""

EPS = 1e-6
"""Added to the square of the length that queries and keys are divided by, as where the models that
were published were trained."""


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
            read, state = gated_delta_rule(q, k, v, log_decay, beta, state)
        normed = merge_heads(self.head_norm(read.flatten(-4, -3)))
        output: torch.Tensor = self.o_proj((normed * F.silu(widen(gate))).to(x.dtype))
        return output, [*after, state]


def unit(x: torch.Tensor) -> torch.Tensor:
    """x (..., width) divided by its length."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    before: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each token reads, S_t^T q_t with S_t = a_t S_(t-1) + k_t u_t^T, where
    u_t = b_t (v_t - a_t S_(t-1)^T k_t) is what its key was not yet mapped to (equation 10 with S
    transposed).

    Within a chunk that begins with the state S, and with D_ij = a_(j+1) ... a_i for j <= i, all u
    are the solution of a triangular system, (1 + strict lower part of b k k^T D) u =
    b (v - a_1 ... a_t k S), which is solved for the two summands on the right before S is known
    (section 3.3 of the paper). Of one token, this is the recurrence.

    Args:
        q: (..., length, width); dimensions before that are broadcast against those of v.
        k: likewise.
        v: (..., length, value width).
        log_decay: the logarithm of a, (..., length).
        beta: b, (..., length).
        before: the state before the first token, (..., width, value width); None if it is zero.

    Returns:
        What the tokens read, (..., length, value width), and the state after the last one.
    """
    length = q.shape[-2]
    size, n_missing = chunks(length, CHUNK)
    if n_missing:  # filled with tokens that change nothing
        q, k, v = (F.pad(t, (0, 0, 0, n_missing)) for t in (q, k, v))
        log_decay, beta = (F.pad(t, (0, n_missing)) for t in (log_decay, beta))
    q, k, v = (t.unflatten(-2, (-1, size)) for t in (q, k, v))
    total = log_decay.unflatten(-1, (-1, size)).cumsum(-1)
    beta = beta.unflatten(-1, (-1, size))[..., None]
    decay = between(total)
    from_start, to_end = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    k_t = k.transpose(-1, -2)
    new, known = beta * v, from_start * beta * k
    if size > 1:
        one = torch.eye(size, dtype=q.dtype, device=q.device)
        inverse = torch.linalg.solve_triangular(
            beta * (k @ k_t) * decay, one, upper=False, unitriangular=True
        )
        new, known = inverse @ new, inverse @ known
    scores, q, late = (q @ k_t) * decay, from_start * q, (to_end * k).transpose(-1, -2)
    kept = from_start[..., -1:, :]
    if before is None:
        before = new.new_zeros(*new.shape[:-3], k.shape[-1], v.shape[-1])
    read, state = [], before
    for i in range(new.shape[-3]):
        at = (..., i, slice(None), slice(None))
        u = new[at] - known[at] @ state
        read.append(q[at] @ state + scores[at] @ u)
        state = kept[at] * state + late[at] @ u
    return torch.cat(read, -2)[..., :length, :], state
