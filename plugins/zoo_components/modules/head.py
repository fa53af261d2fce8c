"""Heads that score the tokens of the vocabulary at each position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from zoo.linear import Linear
from zoo_components.modules.dropout import Dropout


class Logits(NamedTuple):
    """The function from the values of the map to the vocabulary to the head's output.

    Args:
        scale: the factor that multiplies the values.
        softcap: a bound c that the logits approach: c * tanh(logit / c).
        output: what is returned: `logits`, `log_softmax` or `softmax`.
    """

    scale: float
    softcap: float | None
    output: str

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """(..., vocab) to the same."""
        if self.scale != 1.0:
            values = values * self.scale
        if self.softcap is not None:
            values = (values / self.softcap).tanh() * self.softcap
        if self.output == "log_softmax":
            return values.log_softmax(-1)
        return values.softmax(-1) if self.output == "softmax" else values


class LinearHead(nn.Module):
    """logits(out(input_scale * x) + logits_bias)."""

    def __init__(
        self,
        *,
        width: int,
        vocab: int,
        bias: bool,
        input_scale: float,
        logits_bias: bool,
        logits: Logits,
    ) -> None:
        super().__init__()
        self.input_scale = input_scale
        self.out = Linear(width, vocab, bias=bias)
        self.register_buffer("logits_bias", torch.zeros(vocab) if logits_bias else None)
        self.logits = logits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., vocab)."""
        if self.input_scale != 1.0:
            x = x * self.input_scale
        values = self.out(x)
        if self.logits_bias is not None:
            if values.requires_grad:  # it may be a view of a DTensor, which nobody may write to
                # Under autocast, the sum would have the dtype of the bias.
                values = values + self.logits_bias.to(values.dtype)
            else:
                # In place: another tensor of this size takes a quarter of the product's time.
                values = values.add_(self.logits_bias)
        return self.logits(values)


class MlmHead(LinearHead):
    """A linear head after norm(activation(dense(x))), with one dense layer or two."""

    def add_dense(
        self, widths: Sequence[int], *, bias: bool, activation: nn.Module, norm: nn.Module
    ) -> None:
        """Give the head its dense layers, from each of the widths to the next, and the norm."""
        self.dense = Linear(widths[0], widths[1], bias=bias)
        self.activation = activation
        self.dense2 = Linear(widths[1], widths[2], bias=bias) if len(widths) == 3 else None
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., vocab)."""
        x = self.activation(self.dense(x))
        if self.dense2 is not None:
            x = self.activation(self.dense2(x))
        return super().forward(self.norm(x))


class Ctc(nn.Module):
    """out(dropout(x))."""

    def __init__(self, d_model: int, vocab: int, *, dropout: float, bias: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.out = Linear(d_model, vocab, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to (..., vocab)."""
        return self.out(self.dropout(x))
