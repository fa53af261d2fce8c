"""Embedding modules."""

from __future__ import annotations

import torch
from torch import nn


class TokenEmbedding(nn.Module):
    """dropout(norm(scale * table[ids] + positions))."""

    def __init__(
        self,
        *,
        vocab: int,
        d_model: int,
        scale: float,
        positions: nn.Module | None,
        norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.scale = scale
        self.positions = positions
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """ids (batch, length), positions (length,) or (batch, length) to (batch, length, d_model)."""
        x = self.tokens(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        return self.dropout(self.norm(x))


class Vectors(nn.Module):
    """dropout(x + positions)."""

    def __init__(self, *, positions: nn.Module | None, dropout: float) -> None:
        super().__init__()
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x: (batch, length, d_model), kept."""
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        return self.dropout(x)
