"""The distribution that a token is drawn from, and the drawing."""

from __future__ import annotations

import torch

from zoo.generation.methods import Sampling
from zoo.generation.scores import largest
from zoo.weights.dtypes import widened

FEW = 512
"""The number of likeliest tokens in which `top_p` is looked for first. Mostly they are enough, and
finding them takes less than a tenth of the time of sorting a vocabulary of 50,000."""


def probabilities(scores: torch.Tensor, method: Sampling) -> torch.Tensor:
    """Compute the distribution of the next token.

    Args:
        scores: (rows, vocab), the logits up to a constant.
        method: the temperature, and which tokens are left out.

    Returns:
        Probabilities, (rows, vocab), in float32 or wider. Each row sums to 1 and keeps at least one
        token.
    """
    wide = widened(scores) / method.temperature
    if method.top_k is not None and method.top_k < wide.shape[-1]:
        least = largest(wide, method.top_k)[0][:, -1:]
        wide = wide.masked_fill(wide < least, -torch.inf)
    if method.top_p < 1.0:
        wide = wide.masked_fill(_beyond(wide.softmax(-1), method.top_p), -torch.inf)
    found = wide.softmax(-1)
    if method.min_p > 0.0:
        least = method.min_p * found.amax(-1, keepdim=True)
        found = found.masked_fill(found < least, 0.0)
        found = found / found.sum(-1, keepdim=True)
    return found


def draw(found: torch.Tensor, random: torch.Generator | None) -> torch.Tensor:
    """Draw a token of each row, (rows, 1), from its distribution, (rows, vocab)."""
    if not found.is_cpu:
        return torch.multinomial(found, 1, generator=random)
    # On a CPU, `multinomial` draws a number for each token: of 8 x 50,257 that takes 10 ms, and
    # this 0.3.
    sums = found.cumsum(-1, dtype=torch.float64)
    drawn = torch.rand(len(found), 1, dtype=torch.float64, generator=random, device="cpu")
    return torch.searchsorted(sums, drawn * sums[:, -1:], right=True)


def _beyond(found: torch.Tensor, top_p: float) -> torch.Tensor:
    """A mask (rows, vocab), True at tokens where the likelier tokens already sum to `top_p`; never
    at the likeliest."""
    n, vocab = FEW, found.shape[-1]
    likeliest, tokens = largest(found, n)
    while n < vocab and bool((likeliest.sum(-1) < top_p).any()):
        n *= 16
        likeliest, tokens = largest(found, n)
    beyond = likeliest.cumsum(-1) - likeliest >= top_p
    beyond[:, 0] = False  # a `top_p` that is 0 in the dtype is reached before it
    return torch.ones_like(found, dtype=torch.bool).scatter(-1, tokens, beyond)
