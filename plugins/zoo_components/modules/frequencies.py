"""The angular frequencies of rotary positions, in radians per position, for each pair.

Operations are in the order of the published implementations: in float32, another order gives
different angles at far positions, and so another model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from zoo_components.modules.constant import Constant


@dataclass(frozen=True, kw_only=True)
class Frequencies:
    """base**(-2k / width) for the k-th of the width / 2 pairs (Su et al. 2021)."""

    width: int
    base: float

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,), for a pass over these positions, (..., length)."""
        return 1.0 / self.positions_per_radian(positions, dtype)

    def exponents(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """2k / width, (width / 2,), on the device of the positions."""
        return torch.arange(0, self.width, 2, dtype=dtype, device=positions.device) / self.width

    def positions_per_radian(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """base**(2k / width), the inverse frequencies without scaling, (width / 2,)."""
        return self.base ** self.exponents(positions, dtype)


@dataclass(frozen=True, kw_only=True)
class LinearFrequencies(Frequencies):
    """Frequencies divided by `factor`, as if positions were (Chen et al. 2023)."""

    factor: float

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,)."""
        return 1.0 / self.positions_per_radian(positions, dtype) / self.factor


@dataclass(frozen=True, kw_only=True)
class ProportionalFrequencies(Frequencies):
    """Frequencies divided by `factor`, and 0 for all but the first `n_turned` pairs (Gemma 4)."""

    n_turned: int
    factor: float

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,)."""
        frequencies = 1.0 / self.positions_per_radian(positions, dtype) / self.factor
        turned = torch.arange(self.width // 2, device=positions.device) < self.n_turned
        return frequencies.masked_fill(~turned, 0.0)


class StoredFrequencies(nn.Module):
    """Frequencies that are loaded with the weights, as the buffer `weight` (width / 2,)."""

    weight: torch.Tensor

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(width // 2))

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,)."""
        return self.weight.to(dtype)


@dataclass(frozen=True, kw_only=True)
class DynamicFrequencies(Frequencies):
    """A base that grows with the length beyond `original_length` ("dynamic NTK")."""

    factor: float
    original_length: int

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,), or those of each row, (batch, 1, width / 2)."""
        length = _length(positions).clamp(min=self.original_length).to(dtype)
        growth = self.factor * length / self.original_length - (self.factor - 1)
        base = self.base * growth ** (self.width / (self.width - 2))
        return 1.0 / base ** self.exponents(positions, dtype)


@dataclass(frozen=True, kw_only=True)
class YarnFrequencies(Frequencies):
    """YaRN (Peng et al. 2023, section 3.2): fast pairs keep their frequencies, those of slow pairs
    are divided by `factor`, and those between are interpolated."""

    factor: float
    original_length: int
    beta_fast: float
    beta_slow: float
    truncate: bool

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,)."""
        first, last = self._pair_with(self.beta_fast), self._pair_with(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.width - 1)
        pairs = torch.arange(self.width // 2, dtype=dtype, device=positions.device)
        # If both ends are the same pair, the ramp is a step.
        slowed = ((pairs - first) / ((last - first) or 0.001)).clamp(0, 1)
        spread = self.positions_per_radian(positions, dtype)
        kept = 1 - slowed
        return 1.0 / (self.factor * spread) * (1 - kept) + 1.0 / spread * kept

    def _pair_with(self, turns: float) -> float:
        """The pair, as a fractional number, that makes this number of turns in the original
        length."""
        wavelength = self.original_length / (turns * 2 * math.pi)
        return self.width * math.log(wavelength) / (2 * math.log(self.base))


@dataclass(frozen=True, kw_only=True)
class LongFrequencies(Frequencies):
    """LongRoPE (Ding et al. 2024): each pair's frequency is divided by a factor of its own, which
    depends on whether the sequence is longer than `original_length`."""

    original_length: int
    short_factors: Constant
    long_factors: Constant

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,), or those of each row, (batch, 1, width / 2)."""
        short, long = (
            factors.on(positions.device, dtype)
            for factors in (self.short_factors, self.long_factors)
        )
        factors = torch.where(_length(positions) > self.original_length, long, short)
        return 1.0 / (factors * self.positions_per_radian(positions, dtype))


@dataclass(frozen=True, kw_only=True)
class Llama3Frequencies(Frequencies):
    """Llama 3.1 (Grattafiori et al. 2024): the frequencies of slow pairs are divided by `factor`,
    those of fast pairs are kept, and those between are interpolated."""

    factor: float
    original_length: int
    low_freq_factor: float
    high_freq_factor: float

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The frequencies, (width / 2,)."""
        frequencies = 1.0 / self.positions_per_radian(positions, dtype)
        turns = self.original_length / (2 * math.pi / frequencies)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        between = (1 - kept) * frequencies / self.factor + kept * frequencies
        slowed = torch.where(turns < self.low_freq_factor, frequencies / self.factor, between)
        return torch.where(turns >= self.high_freq_factor, frequencies, slowed)


def _length(positions: torch.Tensor) -> torch.Tensor:
    """One more than the last position, (1,), or than that of each row, (batch, 1, 1); a tensor, so
    that the device is not synchronised to read its value."""
    length = positions.amax(-1, keepdim=True) + 1
    return length if positions.dim() == 1 else length[..., None]
