"""What stands for a branch that is not there, in blocks that do not leave it out: it adds 0."""

from __future__ import annotations

import torch
from torch import nn


class NoAttention(nn.Module):
    """Attention that adds nothing, and has no weights."""

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor | None = None, **context: object
    ) -> tuple[torch.Tensor, None]:
        """(..., query, d_model) to zeros of the same shape."""
        return torch.zeros_like(x), None


class NoFeedForward(nn.Module):
    """A network that adds nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to zeros of the same shape."""
        return torch.zeros_like(x)
