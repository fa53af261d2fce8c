"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import torch
from torch import nn


class Dropout(nn.Dropout):
    """`nn.Dropout`, which outside of training calls nothing: GPT-2 has 37 of them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(...) to the same."""
        return super().forward(input) if self.training else input
