"""The distribution that a token is drawn from."""

from __future__ import annotations

import torch

from zoo.generation.methods import Sampling


def probabilities(scores: torch.Tensor, method: Sampling) -> torch.Tensor:
    """Compute the distribution of the next token.

    Args:
        scores: (rows, vocab), the logits up to a constant.
        method: the temperature, and which tokens are left out.

    Returns:
        Probabilities, (rows, vocab), in float32 or wider. Each row sums to 1 and keeps at least one
        token.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32)) / method.temperature
    if method.top_k is not None and method.top_k < wide.shape[-1]:
        least = wide.topk(method.top_k).values[:, -1:]
        wide = wide.masked_fill(wide < least, -torch.inf)
    if method.top_p < 1.0:
        wide = wide.masked_fill(_beyond(wide.softmax(-1), method.top_p), -torch.inf)
    found = wide.softmax(-1)
    if method.min_p > 0.0:
        least = method.min_p * found.amax(-1, keepdim=True)
        found = found.masked_fill(found < least, 0.0)
        found = found / found.sum(-1, keepdim=True)
    return found


def _beyond(found: torch.Tensor, top_p: float) -> torch.Tensor:
    """A mask (rows, vocab), True at tokens where the likelier tokens already sum to `top_p`."""
    ordered, order = found.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(found, dtype=torch.bool).scatter(-1, order, before >= top_p)
