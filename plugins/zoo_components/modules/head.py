"""Head modules."""

from __future__ import annotations

import torch
from torch import nn


class LinearHead(nn.Module):
    """A linear map and what is made of its values."""

    def __init__(self, *, d_model: int, vocab: int, bias: bool, output: str) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, vocab, bias=bias)
        self.output = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., vocab)."""
        logits = self.out(x)
        if self.output == "log_softmax":
            return logits.log_softmax(-1)
        return logits.softmax(-1) if self.output == "softmax" else logits
