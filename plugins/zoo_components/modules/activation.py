"""Activation functions as modules, by name."""

from __future__ import annotations

import torch
from torch import nn


class QuickGelu(nn.Module):
    """x * sigmoid(1.702 x), the fast approximation of GELU (Hendrycks and Gimpel 2016)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape, kept."""
        return x * torch.sigmoid(1.702 * x)


class SquaredRelu(nn.Module):
    """relu(x)**2 (So et al. 2021)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape, kept."""
        return torch.relu(x).square()


def make_activation(name: str, *, slope: float = 0.25) -> nn.Module:
    """The module of an activation; `slope` is where PReLU's one weight starts."""
    if name == "prelu":
        return nn.PReLU(1, init=slope)
    if name == "gelu_tanh":
        return nn.GELU(approximate="tanh")
    plain = {
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "gelu_quick": QuickGelu,
        "silu": nn.SiLU,
        "relu_squared": SquaredRelu,
        "none": nn.Identity,
    }
    return plain[name]()
