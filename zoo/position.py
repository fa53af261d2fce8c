"""What a position scheme's module may do; each way does nothing unless the scheme defines it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Rotation = Callable[[torch.Tensor], torch.Tensor]
"""Turns queries or keys (..., heads, length, head_dim) by their positions."""


class PositionScheme(nn.Module):
    """The base of the modules that position plugins build."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add to the embedded tokens. x: (..., length, d_model), positions: (..., length)."""
        return x

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation | None:
        """What turns the queries and keys of one forward pass, for all layers. positions:
        (..., length). `dtype` is the model's."""
        return None

    def bias(
        self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """What is added to the scores of one forward pass, (heads, query, key), or with a batch
        before. queries, keys: positions, (length,) or (batch, length). `dtype` is the model's."""
        return None
