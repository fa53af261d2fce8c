"""Leaving padding out: maps of single tokens are computed for those that are there."""

from __future__ import annotations

from collections.abc import Callable

import torch

PAYS = 0.9  # the share of tokens above which moving them costs more than it saves


def places_of_tokens(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Where the tokens of x are that a mask leaves, if it pays to compute only those: on a CPU,
    where nobody waits for their number, and without gradients, for which memory would be kept. Of a
    sequence of padding alone all is computed: what may attend to nothing may attend to all alike.

    Args:
        x: (batch, length, width).
        mask: boolean, True = attend; (batch, 1, 1, length) hides tokens from all others.

    Returns:
        Places in the flat list of all tokens, (n,), or None for all.
    """
    if mask is None or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if x.device.type != "cpu" or mask.shape != (x.shape[0], 1, 1, x.shape[1]):
        return None
    try:
        every_row_has_some = bool(mask.any(-1).all())
    except RuntimeError:  # inside `torch.vmap`, where no value can be looked at
        return None
    if not every_row_has_some:
        return None
    places = mask.flatten().nonzero()[:, 0]
    return places if places.shape[0] <= PAYS * mask.numel() else None


def at_places(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, places: torch.Tensor | None
) -> torch.Tensor:
    """f(x) for a map of single tokens, (batch, length, width); 0 at those that are left out."""
    return put_back(f(taken(x, places)), x, places)


def taken(x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """The tokens of x, (batch, length, width), that are at these places, (n, width); or x."""
    return x if places is None else x.flatten(0, 1)[places]


def put_back(computed: torch.Tensor, x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """What was computed of the tokens taken from x, at their places; 0 at those left out."""
    if places is None:
        return computed
    whole = computed.new_zeros(x.shape[0] * x.shape[1], computed.shape[-1])
    return whole.index_copy_(0, places, computed).unflatten(0, x.shape[:2])
