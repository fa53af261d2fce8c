"""Sums over earlier tokens, which fade by a decay that each token brings along."""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
"""The number of tokens whose pairs are computed one by one; earlier chunks are seen by their sums.
Any number gives the same up to rounding."""


def decayed_sums(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    before: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S_t^T q_t for each token, with S_t = a_t S_(t-1) + k_t v_t^T, chunk by chunk: the pairs of
    tokens of a chunk are taken one by one, and what was before by its sum (Dao and Gu 2024,
    arXiv:2405.21060, section 6). Of one token, this is the recurrence.

    Args:
        q: (..., length, width); dimensions before that are broadcast against those of v.
        k: likewise.
        v: (..., length, value width).
        log_decay: the logarithm of a, (..., length).
        before: the sum before the first token, (..., width, value width); None if it is zero.

    Returns:
        What the tokens read, (..., length, value width), and the sum after the last one.
    """
    length = q.shape[-2]
    size, n_missing = chunks(length, CHUNK)
    if n_missing:  # filled with tokens that change nothing
        q, k, v = (F.pad(t, (0, 0, 0, n_missing)) for t in (q, k, v))
        log_decay = F.pad(log_decay, (0, n_missing))
    q, k, v = (t.unflatten(-2, (-1, size)) for t in (q, k, v))
    total = log_decay.unflatten(-1, (-1, size)).cumsum(-1)
    from_start, to_end = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    k_t = k.transpose(-1, -2)
    added, kept = k_t @ (to_end * v), from_start[..., -1:, :]
    state = torch.zeros_like(added[..., 0, :, :]) if before is None else before
    states = []
    for i in range(added.shape[-3]):
        states.append(state)
        state = kept[..., i, :, :] * state + added[..., i, :, :]
    read = ((q @ k_t) * between(total)) @ v + from_start * (q @ torch.stack(states, -3))
    return read.flatten(-3, -2)[..., :length, :], state


def fading_sums(
    added: torch.Tensor, log_decay: torch.Tensor, before: torch.Tensor | None
) -> torch.Tensor:
    """S_t for each token, with S_t = a_t S_(t-1) + added_t for each channel by itself.

    Each pass doubles the number of tokens that are summed up (Hillis and Steele 1986, "Data
    parallel algorithms"), so that 2,000 take 11 passes over all channels.

    Args:
        added: (..., length, channels).
        log_decay: the logarithm of a, of the same shape.
        before: the sum before the first token, (..., channels); None if it is zero.

    Returns:
        (..., length, channels).
    """
    length = added.shape[-2]
    if in_graph():
        return _fading_sums_of_pairs(added, log_decay, before)
    decay = log_decay.exp()
    if before is not None:
        first = added[..., :1, :] + decay[..., :1, :] * before[..., None, :]
        added = torch.cat([first, added[..., 1:, :]], -2)
    n = 1  # each sum is of the last n tokens, and each decay from before these
    while n < length:
        added = added + decay * F.pad(added[..., :-n, :], (0, 0, n, 0))
        decay = decay * F.pad(decay[..., :-n, :], (0, 0, n, 0))
        n *= 2
    return added


def _fading_sums_of_pairs(
    added: torch.Tensor, log_decay: torch.Tensor, before: torch.Tensor | None
) -> torch.Tensor:
    """The same in as many steps for every length, which takes memory for each pair of tokens."""
    total = log_decay.transpose(-1, -2).cumsum(-1)
    read = (between(total) @ added.transpose(-1, -2)[..., None])[..., 0]
    if before is not None:
        read = read + total.exp() * before[..., None]
    return read.transpose(-1, -2)


def fading_maxima(
    added: torch.Tensor, log_decay: torch.Tensor, before: torch.Tensor
) -> torch.Tensor:
    """m_t = max(log_decay_t + m_(t-1), added_t) for each token: the logarithm of the largest of the
    summands so far, faded as in `fading_sums`, whose passes these are.

    Args:
        added: the logarithm of what each token adds, (..., length); -inf adds nothing.
        log_decay: of the same shape.
        before: m before the first token, (...).

    Returns:
        (..., length).
    """
    if in_graph():
        total = log_decay.cumsum(-1)
        of_tokens = (apart(total) + added[..., None, :]).amax(-1)
        return torch.maximum(of_tokens, total + before[..., None])
    n = 1  # each maximum is of the last n tokens, and each decay from before these
    while n < added.shape[-1]:
        earlier = F.pad(added[..., :-n], (n, 0), value=-torch.inf)
        added = torch.maximum(added, log_decay + earlier)
        log_decay = log_decay + F.pad(log_decay[..., :-n], (n, 0))
        n *= 2
    return torch.maximum(added, log_decay + before[..., None])


def chunks(length: int, longest: int) -> tuple[int, int]:
    """The number of tokens of a chunk, of which there is one at least, and the number that the last
    one lacks. In a graph, which is for sequences of all lengths, all tokens are one chunk."""
    if in_graph():
        return length, 0
    size = max(1, min(longest, length))
    return size, -length % size if length else size


def in_graph() -> bool:
    """Whether what is computed is recorded as a graph for sequences of all lengths."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return tracing or torch.compiler.is_exporting()


def between(total: torch.Tensor) -> torch.Tensor:
    """The decay from token j to token i, (..., i, j), 0 for j > i, of the sums (..., length) of the
    logarithms up to each token."""
    return apart(total).exp()


def apart(total: torch.Tensor) -> torch.Tensor:
    """The logarithm of that, -inf for j > i."""
    differences = total[..., :, None] - total[..., None, :]
    later = torch.ones(differences.shape[-2:], dtype=torch.bool, device=total.device).triu(1)
    return differences.masked_fill(later, -torch.inf)
