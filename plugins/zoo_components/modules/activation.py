"""Activation functions as modules, by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Swish(nn.Module):
    """x * sigmoid(beta x) (Ramachandran et al. 2017); with beta = 1.702 the fast approximation of
    GELU (Hendrycks and Gimpel 2016)."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape, kept."""
        return x * torch.sigmoid(self.beta * x)


class SquaredRelu(nn.Module):
    """relu(x)**2 (So et al. 2021)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape, kept."""
        return torch.relu(x).square()


class Xielu(nn.Module):
    """The xIELU of Huang and Schlag (2024), with a_p = softplus(alpha_p) and
    a_n = beta + softplus(alpha_n):

        x > 0:  a_p x**2 + beta x
        x <= 0: a_n (exp(min(x, eps)) - 1 - x) + beta x
    """

    beta: torch.Tensor
    eps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        self.register_buffer("beta", torch.empty(()))
        self.register_buffer("eps", torch.empty(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape, kept."""
        a_p, a_n = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        below = a_n * (torch.expm1(torch.minimum(x, self.eps)) - x)
        return torch.where(x > 0, a_p * x * x, below) + self.beta * x


def make_activation(
    name: str, *, slope: float | None = None, beta: float | None = None
) -> nn.Module:
    """Return the module of an activation. `slope` is the initial value of PReLU's one weight, 0.25
    by default; `beta` is the factor inside the sigmoid of Swish, 1 by default."""
    if name == "prelu":
        return nn.PReLU(1, init=0.25 if slope is None else slope)
    if name == "swish":
        return Swish(1.0 if beta is None else beta)
    if name == "gelu_quick":
        return Swish(1.702)
    if name == "gelu_tanh":
        return nn.GELU(approximate="tanh")
    plain = {
        "relu": nn.ReLU,
        "relu_squared": SquaredRelu,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "xielu": Xielu,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "softplus": nn.Softplus,
        "none": nn.Identity,
    }
    return plain[name]()
