"""From scores to the probabilities that a token is drawn from."""

from __future__ import annotations

import torch

from zoo.generation.methods import Sampling


def probabilities(scores: torch.Tensor, method: Sampling) -> torch.Tensor:
    """The distribution of the next token.

    Args:
        scores: (rows, vocab), any shift of the logits.
        method: how it is cut off.

    Returns:
        (rows, vocab) in float32 at least; each row sums to 1, and at least one token is left.
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
    """(rows, vocab), True at tokens before which the likelier ones already have `top_p` in sum."""
    ordered, order = found.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(found, dtype=torch.bool).scatter(-1, order, before >= top_p)
