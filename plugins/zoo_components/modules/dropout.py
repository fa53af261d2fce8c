"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import torch
from torch import nn


class Dropout(nn.Dropout):
    """`nn.Dropout`, which outside of training calls nothing but hooks: GPT-2 has 37 of them."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(...) to the same."""
        if self.training or self._forward_hooks or self._forward_pre_hooks:
            dropped: torch.Tensor = super().__call__(x)
            return dropped
        return x
