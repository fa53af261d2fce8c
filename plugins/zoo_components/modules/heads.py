"""Operations on the vectors of single heads, (..., heads, length, width)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap


def split_heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """(..., length, heads * width) to (..., heads, length, width). In a process that holds some of
    the heads, `heads` is their number."""
    return torch.unflatten(x, -1, (-1, width)).transpose(-3, -2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """(..., heads, length, width) to (..., length, heads * width)."""
    return x.transpose(-3, -2).flatten(-2)


class PerHeadNorm(nn.Module):
    """A norm with separate parameters for each head: those of `norm`, with a first dimension of
    n_heads."""

    def __init__(self, norm: nn.Module, *, n_heads: int) -> None:
        super().__init__()
        # In a tuple, the norm is not a submodule: its own tensors are never used.
        self.norm = (norm,)
        self.names = tuple(name for name, _ in norm.named_parameters())
        for name, tensor in norm.named_parameters():
            self.register_parameter(name, nn.Parameter(tensor.new_empty(n_heads, *tensor.shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., heads, length, width) to the same."""
        # Not `get_parameter`, which refuses the plain tensors of `torch.func.functional_call`.
        tensors = {name: getattr(self, name) for name in self.names}
        return vmap(self._one_head, in_dims=(0, -3), out_dims=-3)(tensors, x)

    def _one_head(self, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(self.norm[0], tensors, (x,))


class Temperature(NamedTuple):
    """The factor of a query by its position p, so that long contexts do not blur attention
    (Nakanishi 2025, arXiv:2501.19399): `log` is 1 + scale * log(1 + floor((p + shift) / floor)),
    `power` is (1 + (p + shift) / floor)**scale."""

    form: Literal["log", "power"]
    scale: float
    floor: float
    shift: int

    def __call__(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Scale q (..., heads, query, width) by positions (..., query). The factor is computed in
        float32, or float64 for a float64 model."""
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        # Masked tokens may stand at position -1.
        steps = (positions.clamp(min=0).to(exact) + self.shift) / self.floor
        if self.form == "log":
            factor = 1.0 + self.scale * torch.log1p(steps.floor())
        else:
            factor = (1.0 + steps) ** self.scale
        return q * factor.to(q.dtype)[..., None, :, None]


class Gate(NamedTuple):
    """The form of the output gate: one for each element of a head's output or one `per_head`, and
    whether the bias is that of the `projection` or one for all gates of a `head`."""

    activation: Literal["sigmoid", "softplus"]
    per_head: bool
    bias: Literal["none", "projection", "head"]

    def __call__(self, gates: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return gates.sigmoid() if self.activation == "sigmoid" else F.softplus(gates)
