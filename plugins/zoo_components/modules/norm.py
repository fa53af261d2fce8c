"""Normalisation modules that torch does not have as they are needed."""

from __future__ import annotations

import torch
from torch import nn


class StdNorm(nn.Module):
    """weight * (x - mean) / (std + eps) + bias."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (x.std(-1, keepdim=True) + self.eps) + self.bias


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of the last dimension, all others being the batch."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        return super().forward(input.reshape(-1, input.shape[-1])).view_as(input)
