"""Position modules."""

from __future__ import annotations

import math

import torch
from torch import nn

from zoo.position import PositionScheme, Rotation


class SinusoidalPositions(PositionScheme):
    """A fixed table, computed in float64 and rounded once."""

    table: torch.Tensor

    def __init__(
        self, *, d_model: int, max_length: int, base: float, interleaved: bool, half_minus_one: bool
    ) -> None:
        super().__init__()
        self.base, self.interleaved, self.half_minus_one = base, interleaved, half_minus_one
        self.register_buffer("table", torch.empty(max_length, d_model), persistent=False)

    def reset_buffers(self, *, device: torch.device | str) -> None:
        """Compute the table on `device`, in the dtype that the model was built with."""
        table = sinusoids(
            *self.table.shape,
            base=self.base,
            interleaved=self.interleaved,
            half_minus_one=self.half_minus_one,
        )
        self.table = table.to(device, self.table.dtype)

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, d_model) plus the table's rows at positions (..., length)."""
        _check_length(x.shape[-2], self.table.shape[0])
        return x + self.table[positions]


def sinusoids(
    length: int, width: int, *, base: float, interleaved: bool, half_minus_one: bool
) -> torch.Tensor:
    """The table of Vaswani et al. (2017), (length, width) in float64. For an odd width the last
    cosine is left out."""
    n_sines = (width + 1) // 2
    k = torch.arange(n_sines, dtype=torch.float64, device="cpu")
    exponent = k / (width // 2 - 1) if half_minus_one else 2 * k / width
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = position[:, None] * torch.exp(-math.log(base) * exponent)
    sine, cosine = angles.sin(), angles.cos()
    if interleaved:
        return torch.stack([sine, cosine], -1).flatten(1)[:, :width]
    return torch.cat([sine, cosine], 1)[:, :width]


class LearnedPositions(PositionScheme):
    """A table of weight (offset + max_length, d_model)."""

    def __init__(self, *, d_model: int, max_length: int, offset: int) -> None:
        super().__init__()
        self.max_length, self.offset = max_length, offset
        self.weight = nn.Parameter(torch.empty(max_length + offset, d_model))

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, d_model) plus the table's rows at positions (..., length)."""
        _check_length(x.shape[-2], self.max_length)
        return x + self.weight[positions + self.offset]


class RotaryPositions(PositionScheme):
    """Rotates the first `width` elements of each query and key head."""

    def __init__(self, *, width: int, base: float, interleaved: bool) -> None:
        super().__init__()
        self.width, self.base, self.interleaved = width, base, interleaved

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """positions: (..., length). Angles are computed in float32, or float64 for a float64
        model: in half precision, neighbouring positions would fall together."""
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        k = torch.arange(0, self.width, 2, dtype=exact, device=positions.device)
        angles = positions.to(exact)[..., None] * self.base ** (-k / self.width)
        cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
        return lambda x: self._turn(x, cosine[..., None, :, :], sine[..., None, :, :])

    def _turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """x: (..., heads, length, head_dim); cosine, sine: (..., 1, length, width / 2)."""
        turned, rest = x[..., : self.width], x[..., self.width :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned.chunk(2, -1)
        parts = a * cosine - b * sine, b * cosine + a * sine
        joined = torch.stack(parts, -1).flatten(-2) if self.interleaved else torch.cat(parts, -1)
        return torch.cat([joined, rest], -1) if rest.shape[-1] else joined


def _check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise ValueError(
            f"a sequence of {length} tokens is longer than the model's {max_length} positions "
            "(`max_length` in its spec)"
        )
