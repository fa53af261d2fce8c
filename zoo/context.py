"""What a stack tells each of its layers in one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch

from zoo.cache import LayerCache
from zoo.position import PositionScheme, Rotation


class LayerContext(NamedTuple):
    """The same for every layer with the same position scheme.

    Args:
        mask: for self-attention: boolean, True = attend, broadcasts to (batch, heads, query, key).
        tokens: which tokens are no padding, boolean, (batch, length); None for all.
        places: where the tokens that are no padding are in the flat list of all; None where maps
            of single tokens are computed for all.
        causal: self-attention sees no later position; joined with `mask`.
        positions: of each token, (length,) or (batch, length).
        key_positions: of each key of self-attention: with a cache, of all tokens so far.
        scheme: the position scheme inside attention, for attention that reads its tables.
        rotation: what that scheme turns queries and keys with.
        bias: what it adds to the scores, (heads, query, key) or with a batch before.
        memory: what cross-attention attends to, (batch, key, memory_width).
        memory_mask: for cross-attention, as `mask`.
        global_tokens: tokens that see all and are seen by all, (batch, length), for self-attention
            that takes them.
        cache: what the layer keeps of the tokens before; None where all tokens are here.
        return_weights: whether attention weights are returned.
    """

    mask: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    places: torch.Tensor | None = None
    causal: bool = False
    positions: torch.Tensor | None = None
    key_positions: torch.Tensor | None = None
    scheme: PositionScheme | None = None
    rotation: Rotation | None = None
    bias: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    memory_mask: torch.Tensor | None = None
    global_tokens: torch.Tensor | None = None
    cache: LayerCache | None = None
    return_weights: bool = False
