"""The modules of `zoo.plugin_kit.parts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo.position import PositionScheme


class Hearing(nn.Module):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: Mapping[str, Any] = {}

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor | None = None, **given: Any
    ) -> tuple[torch.Tensor, None]:
        """(..., length, d_model) to zeros of the same shape."""
        self.heard = given
        return torch.zeros_like(x), None


class HearingIds(nn.Module):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """(..., d_model) to zeros of the same shape."""
        self.heard = ids
        return torch.zeros_like(x)


class Averaging(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(batch, length, width) and a mask (batch, length), False for padding, to the mean of each
        token and those before it."""
        counted = x.new_ones(x.shape[:-1]) if mask is None else mask.to(x.dtype)
        total = (x * counted[..., None]).cumsum(-2)
        return total / counted.cumsum(-1).clamp(min=1)[..., None]


class AveragedTokens(nn.Module):
    def __init__(self, vocab: int, d_model: int, scheme: PositionScheme | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, d_model)
        self.average = Averaging()
        self.positions = scheme

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """ids (batch, length) to (batch, length, d_model)."""
        x: torch.Tensor = self.average(self.tokens(ids), mask)
        return x if self.positions is None else self.positions.embed(x, positions)


class Out(nn.Module):
    def __init__(self, d_model: int, vocab: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., vocab)."""
        output: torch.Tensor = self.out(x)
        return output
