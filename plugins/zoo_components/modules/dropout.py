"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import hooked


class Dropout(nn.Dropout):
    """`nn.Dropout` whose call is skipped outside of training and without gradients, unless it has
    hooks: GPT-2 has 37 of them."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(...) to the same."""
        if self.training or torch.is_grad_enabled() or hooked(self):
            dropped: torch.Tensor = super().__call__(x)
            return dropped
        return x
