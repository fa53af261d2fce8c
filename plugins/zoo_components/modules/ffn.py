"""Feed-forward networks."""

from __future__ import annotations

from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear, activated, together
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.norm import Norm, put_norm


class Mlp(nn.Module):
    """down(dropout(sub_norm(activation(up(x))))); if `gated`,
    down(dropout(sub_norm(activation(gate(x)) * up(x))))."""

    sub_norm: Norm

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        gated: bool,
        activation: nn.Module,
        inner_bias: bool,
        bias: bool,
        sub_norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=inner_bias) if gated else None
        self.up_proj = Linear(d_model, d_ff, bias=inner_bias)
        self.activation = activation
        put_norm(self, "sub_norm", sub_norm)
        self.dropout = Dropout(dropout)
        self.down_proj = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., d_model)."""
        if self.gate_proj is None:
            hidden = activated(self.up_proj, self.activation, x)
        else:
            hidden = activated(self.gate_proj, self.activation, x) * self.up_proj(x)
        return self.down_proj(self.dropout(self.sub_norm(hidden)))


class SparseGate(nn.Module):
    """activation(relu(x - mean - std * quantile)), where the mean and the standard deviation are
    those of the gates of a token, and the quantile is that of the normal distribution (You et al.
    2025, arXiv:2506.06644)."""

    def __init__(self, activation: nn.Module, sparsity: float) -> None:
        super().__init__()
        self.activation = activation
        self.quantile = NormalDist().inv_cdf(sparsity)

    def extra_repr(self) -> str:
        """The quantile, as `print(model)` shows it."""
        return f"quantile={self.quantile:g}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_ff) to (..., d_ff)."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, correction=0, keepdim=True)
        return self.activation(torch.relu(x - (mean + std * self.quantile)))


class Conv1d(nn.Module):
    """down(dropout(activation(up(x)))) with two convolutions that keep the length of the
    sequence."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        kernel_size: int,
        activation: nn.Module,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.up_proj = nn.Conv1d(d_model, d_ff, kernel_size, padding="same", bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.down_proj = nn.Conv1d(d_ff, d_model, kernel_size, padding="same", bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., length, d_model) to (..., length, d_model)."""
        hidden = self.dropout(self.activation(self.up_proj(x.transpose(-1, -2))))
        return self.down_proj(hidden).transpose(-1, -2)


class GatedConv1d(nn.Module):
    """down(activation(conv_norm(conv(up(x) * sigmoid(gate(x)))))), where `conv` has a kernel for
    each channel, over the position itself, `after` later ones and the rest before it (Gulati et al.
    2020, arXiv:2005.08100, section 2.2)."""

    conv_norm: Norm

    def __init__(
        self,
        *,
        d_model: int,
        kernel_size: int,
        after: int,
        conv_norm: nn.Module,
        activation: nn.Module,
        bias: bool,
    ) -> None:
        super().__init__()
        self.padding = (kernel_size - 1 - after, after)
        self.gate_proj = Linear(d_model, d_model, bias=bias)
        self.up_proj = Linear(d_model, d_model, bias=bias)
        self.conv = nn.Conv1d(d_model, d_model, kernel_size, groups=d_model, bias=bias)
        put_norm(self, "conv_norm", conv_norm)
        self.activation = activation
        self.down_proj = Linear(d_model, d_model, bias=bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to the same. mask: boolean, (..., length), False where the
        convolution reads zeros; by default nowhere."""
        gate, up = together([self.gate_proj, self.up_proj], x)
        inner = up * gate.sigmoid()
        if mask is not None:
            inner = inner.masked_fill(~mask[..., None], 0.0)
        mixed = self.conv(F.pad(inner.transpose(-1, -2), self.padding)).transpose(-1, -2)
        return self.down_proj(self.activation(self.conv_norm(mixed)))


class ResidualStack(nn.Module):
    """`n_units` residual units x + down(dropout(activation(up(unit_norm(x))))) with the same
    weights; returns the sum of what they add to x."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_units: int,
        norm: nn.Module,
        activation: nn.Module,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_units = n_units
        self.unit_norm = norm
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.down_proj = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., d_model)."""
        added = torch.zeros_like(x)
        for _ in range(self.n_units):
            hidden = activated(self.up_proj, self.activation, self.unit_norm(x + added))
            added = added + self.down_proj(self.dropout(hidden))
        return added
