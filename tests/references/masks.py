"""Masks for the reference systems: boolean, True = attend."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def some(*shape: int) -> Tensor:
    """A random mask in which every query may attend to at least one key."""
    random = torch.Generator().manual_seed(0)  # some masks are made at import, before a test seeds
    mask = torch.rand(shape, generator=random) < 0.5
    return mask.scatter(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=random), True)


def nothing(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def padding(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def full(mask: Tensor | None) -> Tensor | None:
    """Return a mask of the zoo in the shape of the references: (batch, heads, query, key)."""
    if mask is None or mask.dim() == 4:
        return mask
    return mask[:, None, None] if mask.dim() == 2 else mask[:, None]


MASKS = pytest.mark.parametrize(
    "mask",
    [
        None,
        some(2, 5, 5),
        padding(5, 3),
        some(1, 4, 5, 5),
        some(2, 4, 5, 5),
        some(2, 5, 5) & (torch.arange(5) != 2)[:, None],
        nothing(1, 4, 5, 5),
    ],
    ids=["none", "random", "padding", "per head", "all different", "a masked row", "nothing"],
)
