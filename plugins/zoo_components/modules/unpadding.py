"""Leaving padding out of maps that are computed for each token by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import nn
from torch.nn.modules import module as every_module

PAYS = 0.9  # the share of tokens above which moving them costs more than it saves

LONG = 64
"""The length from which a batch's attention takes longer than that of its sequences one by one: a
kernel with a mask computes all that it hides, and a call costs some 30 microseconds."""

OF_ANY_SHAPE = ("torch.distributed.", "torch.utils.module_tracker", "zoo.sharding.")
"""How the modules begin whose hooks take tensors of any shape; `module_tracker` is that of torch's
counter of operations, which is to count what is computed."""


def places_of_tokens(
    x: torch.Tensor, mask: torch.Tensor | None, seen_by: nn.Module
) -> torch.Tensor | None:
    """The places of the tokens that a mask leaves, if computing only those is faster: on a CPU,
    where reading their number needs no synchronisation, and without gradients, which would keep
    memory. A sequence of padding alone is computed whole, since a query without keys may have equal
    weights for all of them.

    Args:
        x: (batch, length, width).
        mask: boolean, True = attend; (batch, 1, 1, length) hides tokens from all others.
        seen_by: the module whose parts would get the tokens as (n, width). With a hook on any of
            them, all tokens are computed, since who wrote the hook expects (batch, length, width).

    Returns:
        Indices into the flattened tokens, (n,), or None for all tokens.
    """
    if mask is None or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if x.device.type != "cpu" or mask.shape != (x.shape[0], 1, 1, x.shape[1]):
        return None
    try:
        every_row_has_some = bool(mask.any(-1).all())
    except RuntimeError:  # inside `torch.vmap`, where no value can be looked at
        return None
    if not every_row_has_some or _is_hooked(seen_by):
        return None
    places = mask.flatten().nonzero()[:, 0]
    return places if places.shape[0] <= PAYS * mask.numel() else None


def _is_hooked(module: nn.Module) -> bool:
    """Return whether a hook sees what enters or leaves this module or a part of it, other than
    those by which torch spreads a module over processes or counts operations, which take any
    shape."""
    hooks = chain(
        every_module._global_forward_hooks.values(),
        every_module._global_forward_pre_hooks.values(),
        *(part._forward_hooks.values() for part in module.modules()),
        *(part._forward_pre_hooks.values() for part in module.modules()),
    )
    functions = (getattr(hook, "func", hook) for hook in hooks)  # a `partial` has one inside
    return any(
        not str(getattr(function, "__module__", "")).startswith(OF_ANY_SHAPE)
        for function in functions
    )


def at_places(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, places: torch.Tensor | None
) -> torch.Tensor:
    """f(x) for a map f of single tokens, (batch, length, width); 0 at tokens that are left out."""
    return put_back(f(taken(x, places)), x, places)


def taken(x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """The tokens of x (batch, length, width) at these places, (n, width); x itself without
    places."""
    return x if places is None else x.flatten(0, 1)[places]


def put_back(computed: torch.Tensor, x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Put what was computed from the tokens taken from x back at their places; 0 elsewhere."""
    if places is None:
        return computed
    whole = computed.new_zeros(x.shape[0] * x.shape[1], computed.shape[-1])
    return whole.index_copy_(0, places, computed).unflatten(0, x.shape[:2])


def lengths(mask: torch.Tensor) -> list[int] | None:
    """The number of tokens of each sequence, if all padding is at the ends of sequences for which
    attention is faster one by one; None otherwise.

    Args:
        mask: boolean, True = a token, (batch, 1, 1, length).
    """
    if mask.shape[-1] < LONG:
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        return None  # the graph would hold these numbers
    there = mask[:, 0, 0]
    found = there.sum(-1)
    places = torch.arange(mask.shape[-1], device=mask.device)
    return found.tolist() if torch.equal(there, places < found[:, None]) else None
