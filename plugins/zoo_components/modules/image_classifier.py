"""Heads that classify images."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear
from zoo_components.modules.classifier import pool


class DistilledClassifier(nn.Module):
    """(out(x_0) + distillation(x_1)) / 2, of the states x_0 and x_1 of the first two positions."""

    def __init__(self, *, d_model: int, n_classes: int, bias: bool) -> None:
        super().__init__()
        self.out = Linear(d_model, n_classes, bias=bias)
        self.distillation = Linear(d_model, n_classes, bias=bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., n_classes); a position that is padding by `mask`, as in
        `pool`, has no part in the mean.

        Raises:
            ValueError: there is a single position.
        """
        if x.shape[-2] < 2:
            raise ValueError("this head reads the states of two positions, and there is only one")
        both = torch.stack([self.out(x[..., 0, :]), self.distillation(x[..., 1, :])], -2)
        return pool(both, "mean", None if mask is None else mask[..., :2])


class PatchClassifier(nn.Module):
    """out([x_0, mean(patches)]), of the states after the class token and the registers."""

    def __init__(self, *, d_model: int, n_classes: int, n_registers: int, bias: bool) -> None:
        super().__init__()
        self.first_patch = 1 + n_registers
        self.out = Linear(2 * d_model, n_classes, bias=bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., n_classes); a position that is padding by `mask`, as in
        `pool`, has no part in the mean.

        Raises:
            ValueError: there is no position after the class token and the registers.
        """
        n, first = x.shape[-2], self.first_patch
        if n <= first:
            raise ValueError(f"this head reads positions from {first} on, and there are only {n}")
        there = None if mask is None else mask[..., first:]
        mean = pool(x[..., first:, :], "mean", there)
        return self.out(torch.cat([x[..., 0, :], mean], -1))
