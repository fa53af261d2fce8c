"""Heads that classify tokens or sequences, or pool a sequence to a vector."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.norm import widen


def pool(x: torch.Tensor, pooling: str, mask: torch.Tensor | None) -> torch.Tensor:
    """Pool the states of each sequence to one vector.

    Args:
        x: states (..., length, d_model).
        pooling: `first`, the state of the first position; `first_two`, the mean of those of the
            first two; `last`, that of the last token that is not padding; of the states of all n
            that are not, `mean`, `mean_after_first`, without the first position, `mean_sqrt`, their
            sum over sqrt(n), `weighted_mean`, weighted by their place from 1, or `max`.
        mask: boolean, False = padding, (..., length); by default there is no padding.

    Returns:
        (..., d_model). For a sequence of padding alone, `last` is the state of the first position,
        and the poolings over all tokens are 0.
    """
    if pooling == "first":
        return x[..., 0, :]
    if pooling == "first_two":
        return x[..., :2, :].mean(-2)
    if mask is None:
        mask = x.new_ones(x.shape[:-1], dtype=torch.bool)
    mask = mask.expand(x.shape[:-1])
    if pooling == "mean_after_first":
        x, mask = x[..., 1:, :], mask[..., 1:]
    places = torch.arange(x.shape[-2], device=x.device)
    if pooling == "last":
        return state_at(x, (mask * places).amax(-1))
    if pooling == "max":
        largest = x.masked_fill(~mask[..., None], -torch.inf).amax(-2)
        return largest.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    weights = mask * (places + 1) if pooling == "weighted_mean" else mask
    wide = widen(x)  # in half precision, the sum of a long sequence is infinite
    total = (wide.masked_fill(~mask[..., None], 0.0) * weights[..., None]).sum(-2)
    n = weights.sum(-1, keepdim=True).clamp(min=1).to(wide.dtype)
    return (total / (n.sqrt() if pooling == "mean_sqrt" else n)).to(x.dtype)


def state_at(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The state of each sequence at its place: x (..., length, d_model) and (...) to (...,
    d_model)."""
    at = place[..., None, None]
    return x.gather(-2, at.expand(*at.shape[:-1], x.shape[-1])).squeeze(-2)


class Classifier(nn.Module):
    """out(dropout(norm(activation(dense(x))))) for each position, or, with a pooling, of one vector
    for each sequence."""

    def __init__(
        self,
        *,
        d_model: int,
        n_classes: int,
        pooling: str | None,
        dense: nn.Module | None,
        activation: nn.Module,
        norm: nn.Module,
        dropout: float,
        bias: bool,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = dense
        self.activation = activation
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.out = Linear(d_model, n_classes, bias=bias)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., n_classes), or without a pooling to (..., length,
        n_classes); `mask` as in `pool`."""
        if self.pooling is not None:
            x = pool(x, self.pooling, mask)
        if self.dense is not None:
            x = self.activation(self.dense(x))
        return self.out(self.dropout(self.norm(x)))


class ProjectedClassifier(nn.Module):
    """out(mean(dense(x)))."""

    def __init__(self, *, d_model: int, d_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_hidden)
        self.out = Linear(d_hidden, n_classes)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., n_classes); `mask` as in `pool`."""
        return self.out(pool(self.dense(x), "mean", mask))


class Pooler(Linear):
    """activation(weight pool(x) + bias), one vector for each sequence."""

    def __init__(self, *, d_model: int, pooling: str, activation: nn.Module) -> None:
        super().__init__(d_model, d_model)
        self.pooling = pooling
        self.activation = activation

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., d_model); `mask` as in `pool`."""
        return self.activation(super().forward(pool(x, self.pooling, mask)))
