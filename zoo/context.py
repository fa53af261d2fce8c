"""What a stack tells each of its layers in one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch

from zoo.position import Rotation


class LayerContext(NamedTuple):
    """The same for every layer of a stack.

    Args:
        mask: for self-attention: boolean, True = attend, broadcasts to (batch, heads, query, key).
        causal: self-attention sees no later position; joined with `mask`.
        rotation: what the position scheme turns queries and keys with.
        bias: what the position scheme adds to the scores, (heads, query, key).
        memory: what cross-attention attends to, (batch, key, memory_width).
        memory_mask: for cross-attention, as `mask`.
        return_weights: whether attention weights are returned.
    """

    mask: torch.Tensor | None = None
    causal: bool = False
    rotation: Rotation | None = None
    bias: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    memory_mask: torch.Tensor | None = None
    return_weights: bool = False
