"""Masks of attention, in the shapes in which a model takes them."""

from __future__ import annotations

import torch


def expand_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a (batch, key) or (batch, query, key) mask with its missing dimensions."""
    if mask is None or mask.dim() not in (2, 3):
        return mask
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None, :, :]


def check_mask(mask: torch.Tensor, *, batch: int, query: int, key: int) -> torch.Tensor:
    """Check a mask, and return it as attention takes it: boolean, True = attend, (batch or 1, heads
    or 1, query or 1, key).

    Args:
        mask: (batch, key), (batch, query, key) or (batch, heads, query, key); a batch, heads or
            query of 1 is broadcast.

    Raises:
        TypeError: it is not a tensor, or not boolean.
        ValueError: it has another shape.
    """
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"a mask is a tensor, True = attend, not a {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is boolean, True = attend, not {mask.dtype}; compare with `!= 0`")
    full = expand_mask(mask)
    fits = (
        full is not None
        and full.dim() == 4
        and full.shape[0] in (1, batch)
        and full.shape[2] in (1, query)
        and full.shape[3] == key
    )
    if full is None or not fits:
        hint = "; one for all sequences is `mask[None]`" if mask.shape == (query, key) else ""
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not fit batch {batch}, {query} queries and "
            f"{key} keys: it is (batch, key), (batch, query, key) or (batch, heads, query, key)"
            f"{hint}"
        )
    return full
