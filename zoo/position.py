"""The interface of the modules of position schemes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Rotation = Callable[[torch.Tensor], torch.Tensor]
"""Rotates queries or keys (..., heads, length, head_dim) by their positions."""


class PositionScheme(nn.Module):
    """The base of the modules of position plugins, which override one or more methods."""

    axes = 1
    """How many coordinates of a token the scheme tells apart, such as the row and the column of a
    patch. With more than one, it defines `rotation_at` too."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add to the embedded tokens. x: (..., length, d_model), positions: (..., length)."""
        return x

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation | None:
        """The rotation of queries and keys in one forward pass, for all layers. positions:
        (..., length). `dtype` is that of the model."""
        return None

    def rotation_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> Rotation | None:
        """As `rotation`, for tokens that have a coordinate for each of the `axes`, (..., length,
        axes). `rotation` is for those whose coordinates all are the position."""
        raise NotImplementedError

    def bias(
        self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """The bias of the scores in one forward pass, (heads, query, key) or (batch, heads, query,
        key). queries, keys: positions, (length,) or (batch, length). `dtype` is the model's."""
        return None


def rotation_of(
    scheme: PositionScheme,
    positions: torch.Tensor,
    offsets: torch.Tensor | None,
    dtype: torch.dtype,
) -> Rotation | None:
    """The rotation by a scheme of tokens at positions (..., length), by whose coordinates if it
    tells several apart: these are the positions plus `offsets`, (..., length, axes), or plus 0 if
    there are none."""
    if offsets is None or scheme.axes == 1:
        return scheme.rotation(positions, dtype)
    return scheme.rotation_at(positions[..., None] + offsets, dtype)


def add_biases(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of two biases; None adds nothing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b
