"""The gated delta rule: a state that maps keys to values, and fades (Yang et al. 2024,
arXiv:2412.06464)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from zoo_components.modules.decay import between, chunks, in_graph

CHUNK = 64
"""The number of tokens that are computed as products of matrices, between two states. Any number
gives the same up to rounding."""

EPS = 1e-6
"""Added to the square of the length that queries and keys are divided by, as where the models that
were published were trained."""


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
    u_t = b_t (v_t - (a_t S_(t-1))^T k_t) is what its key was not yet mapped to (equation 10 with S
    transposed). The decay a_t is a number, or one for each channel of the keys, and so for each row
    of S (Kimi Team 2025, arXiv:2510.26692, section 3).

    Within a chunk that begins with the state S, and with D_ij = a_(j+1) ... a_i for j <= i, all u
    are the solution of a triangular system, (1 + strict lower part of b k D k^T) u =
    b (v - k a_1 ... a_t S), which is solved for the two summands on the right before S is known
    (section 3.3 of the paper). Of one token, this is the recurrence.

    Args:
        q: (..., length, width); dimensions before that are broadcast against those of v.
        k: likewise.
        v: (..., length, value width).
        log_decay: the logarithm of a, (..., length, width), or (..., length, 1).
        beta: b, (..., length).
        before: the state before the first token, (..., width, value width); None if it is zero.

    Returns:
        What the tokens read, (..., length, value width), and the state after the last one.
    """
    length = q.shape[-2]
    size, n_missing = chunks(length, CHUNK)
    if n_missing:  # filled with tokens that change nothing
        q, k, v, log_decay = (F.pad(t, (0, 0, 0, n_missing)) for t in (q, k, v, log_decay))
        beta = F.pad(beta, (0, n_missing))
    q, k, v, log_decay = (t.unflatten(-2, (-1, size)) for t in (q, k, v, log_decay))
    beta = beta.unflatten(-1, (-1, size))[..., None]
    total = log_decay.cumsum(-2)
    from_start, to_end = total.exp(), (total[..., -1:, :] - total).exp()
    of_keys, of_queries = faded_products(torch.stack([k, q]), k, total)
    new, known = beta * v, from_start * beta * k
    if size > 1:
        one = torch.eye(size, dtype=q.dtype, device=q.device)
        inverse = torch.linalg.solve_triangular(
            beta * of_keys, one, upper=False, unitriangular=True
        )
        new, known = inverse @ new, inverse @ known
    q, late = from_start * q, (to_end * k).transpose(-1, -2)
    kept = from_start[..., -1:, :].transpose(-1, -2)
    if before is None:
        before = new.new_zeros(*new.shape[:-3], k.shape[-1], v.shape[-1])
    read, state = [], before
    for i in range(new.shape[-3]):
        at = (..., i, slice(None), slice(None))
        u = new[at] - known[at] @ state
        read.append(q[at] @ state + of_queries[at] @ u)
        state = kept[at] * state + late[at] @ u
    return torch.cat(read, -2)[..., :length, :], state


def faded_products(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The products a_i D_ij b_j of each token i with each j <= i, where D_ij is the decay from j to
    i; 0 for j > i.

    If each channel has a decay, those between the two halves of the tokens are products of
    matrices, since D_ij is what fades from j to the middle times what fades from there to i; those
    within the halves are found likewise. No exponential is of a positive number, as it would be if
    a_i and b_j were scaled from the first token on.

    Args:
        a: (..., length, width); dimensions before that are broadcast against those of b.
        b: likewise.
        total: the sums of the logarithms of the decays up to each token, (..., length, width), or
            (..., length, 1).

    Returns:
        (..., length, length).
    """
    if total.shape[-1] == 1:
        return (a @ b.transpose(-1, -2)) * between(total[..., 0])
    length = a.shape[-2]
    if length == 1 or in_graph():
        a, b, total = (t.transpose(-1, -2) for t in (a, b, total))
        return (a[..., :, None] * b[..., None, :] * between(total)).sum(-3)
    if length % 2:  # with a token that changes nothing
        a, b = (F.pad(t, (0, 0, 0, 1)) for t in (a, b))
        total = torch.cat([total, total[..., -1:, :]], -2)
        return faded_products(a, b, total)[..., :-1, :-1]
    a, b, total = (t.unflatten(-2, (2, -1)) for t in (a, b, total))
    (_, later), (earlier, _), (first, second) = (t.unbind(-3) for t in (a, b, total))
    middle = first[..., -1:, :]
    late = (later * (second - middle).exp()) @ (earlier * (middle - first).exp()).transpose(-1, -2)
    top, bottom = faded_products(a, b, total).unbind(-3)
    n = length // 2
    return torch.cat([F.pad(top, (0, n)), torch.cat([late, bottom], -1)], -2)
