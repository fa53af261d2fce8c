"""Normalisation layers, which compute in float32 or wider, whatever the dtype of x."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.Module):
    """weight * (x - mean) / sqrt(variance + eps) + bias, with 1 + weight for weight if
    `zero_centered` (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(
        self, width: int, *, eps: float, weight: bool, zero_centered: bool, bias: bool
    ) -> None:
        super().__init__()
        self.shape = (width,)
        self.eps = eps
        self.zero_centered = zero_centered
        self.weight = _weight(width, zero_centered) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def extra_repr(self) -> str:
        """The width and `eps`, as `print(model)` shows them."""
        return f"{self.shape[0]}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        weight: torch.Tensor | None = self.weight  # once: a module finds its tensors slowly
        bias: torch.Tensor | None = self.bias
        of_heads = _of_heads(weight) or _of_heads(bias)
        if not (self.zero_centered or of_heads) and _fit(x, weight, bias):
            return F.layer_norm(x, self.shape, weight, bias, self.eps)
        weight, bias = (None if t is None else widen(t) for t in (weight, bias))
        if weight is not None and self.zero_centered:
            weight = 1 + weight
        if of_heads:
            normed = F.layer_norm(widen(x), self.shape, None, None, self.eps)
            normed = normed if weight is None else normed * weight
            return (normed if bias is None else normed + bias).to(x.dtype)
        return F.layer_norm(widen(x), self.shape, weight, bias, self.eps).to(x.dtype)


class RmsNorm(nn.Module):
    """weight * x / sqrt(mean(x**2) + eps), with 1 + weight for weight if `zero_centered` (Zhang and
    Sennrich 2019, arXiv:1910.07467). In low precision, the quotient is rounded before the
    multiplication if `cast_first`, otherwise the product is."""

    def __init__(
        self, width: int, *, eps: float, weight: bool, zero_centered: bool, cast_first: bool
    ) -> None:
        super().__init__()
        self.shape = (width,)
        self.eps = eps
        self.zero_centered = zero_centered
        self.cast_first = cast_first
        self.weight = _weight(width, zero_centered) if weight else None

    def extra_repr(self) -> str:
        """As for `LayerNorm`."""
        return f"{self.shape[0]}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        weight = self.weight  # once, as in `LayerNorm`
        if weight is None or self.cast_first:
            normed = F.rms_norm(x, self.shape, None, self.eps)
            return normed if weight is None else normed * self._scale(weight)
        if _of_heads(weight):
            wide = F.rms_norm(widen(x), self.shape, None, self.eps)
            return (wide * self._scale(widen(weight))).to(x.dtype)
        # Under autocast x may be narrower than the weight, which fused kernels do not take.
        if self.zero_centered or weight.dtype != x.dtype:
            scale = self._scale(widen(weight))
            return F.rms_norm(widen(x), self.shape, scale, self.eps).to(x.dtype)
        return F.rms_norm(x, self.shape, weight, self.eps)

    def _scale(self, weight: torch.Tensor) -> torch.Tensor:
        return 1 + weight if self.zero_centered else weight


class StandardizedRmsNorm(nn.Module):
    """y / sqrt(mean(y**2) + eps) with y = scale * (sqrt(width) * x - mean); in low precision, y is
    rounded to it."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.shape = (width,)
        self.eps = eps
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def extra_repr(self) -> str:
        """As for `LayerNorm`."""
        return f"{self.shape[0]}, eps={self.eps}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        # The mean is large, and what is left after the difference is not.
        apart = widen(x) * self.shape[0] ** 0.5 - widen(self.mean)
        return F.rms_norm((apart * widen(self.scale)).to(x.dtype), self.shape, None, self.eps)


class ScaleNorm(nn.Module):
    """weight * x / max(|x|, eps) with a single weight (Nguyen and Salazar 2019,
    arXiv:1910.05895)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), math.sqrt(width)))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        wide = widen(x)
        length = wide.norm(dim=-1, keepdim=True).clamp(min=self.eps)
        return (widen(self.weight) * wide / length).to(x.dtype)


class StdNorm(nn.Module):
    """weight * (x - mean) / (std + eps) + bias, with the unbiased std (Rush 2018)."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        wide = widen(x)
        centred = wide - wide.mean(-1, keepdim=True)
        normed = widen(self.weight) * centred / (wide.std(-1, keepdim=True) + self.eps)
        return (normed + widen(self.bias)).to(x.dtype)


class DynamicTanh(nn.Module):
    """weight * tanh(alpha * x) + bias with a single alpha (Zhu et al. 2025, arXiv:2503.10622)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        squashed = torch.tanh(widen(self.alpha) * widen(x))
        return (widen(self.weight) * squashed + widen(self.bias)).to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of the last dimension, all others being the batch."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., width) to (..., width)."""
        if input.dtype.itemsize > self.weight.dtype.itemsize:  # kernels do not take it
            return self.forward(input.to(self.weight.dtype)).to(input.dtype)
        return super().forward(input.reshape(-1, input.shape[-1])).view_as(input)


Norm = Callable[[torch.Tensor], torch.Tensor]
"""The module of a norm, or the identity function where there is no norm."""


def put_norm(module: nn.Module, name: str, norm: nn.Module | None) -> None:
    """Register a norm in a module. Instead of a norm that does nothing, a plain function is set:
    its call takes a thirtieth of the time of a module's, and GPT-2 has 108 of them."""
    if norm is None or type(norm) is nn.Identity:
        setattr(module, name, _as_it_is)
    else:
        module.add_module(name, norm)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def is_autocast(x: torch.Tensor) -> bool:
    """Whether autocast is on for the device of x. There is none for tensors on meta."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def without_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """A block in which autocast rounds nothing on the device of x."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast(x) else nullcontext()


def widen(x: torch.Tensor) -> torch.Tensor:
    """x in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _of_heads(tensor: torch.Tensor | None) -> bool:
    """Whether a tensor of a norm is one for each head, (heads, 1, width), which fused kernels do
    not take."""
    return tensor is not None and tensor.dim() > 1


def _fit(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> bool:
    """Whether kernels of layer norms take x with these tensors. They take a weight that is wider
    than x, as under autocast, and neither a bias alone that is, nor an x that is wider than its
    weight."""
    if weight is None:
        return bias is None or bias.dtype == x.dtype
    return x.dtype.itemsize <= weight.dtype.itemsize


def _weight(width: int, zero_centered: bool) -> nn.Parameter:
    return nn.Parameter(torch.zeros(width) if zero_centered else torch.ones(width))
