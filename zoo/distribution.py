"""Distributions of initial weights: descriptions only, from which `zoo.fill` draws.

A distribution is plain data, so that a component can state how its weights start without importing
torch. Every number is rounded once to float32 when it is used, but for the constant of a tensor of
integers, so it must be a finite float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOAT32_MAX = float.fromhex("0x1.fffffep+127")


def _check(name: str, value: float, *, least: float) -> None:
    """Raise ValueError unless `value` is in [least, FLOAT32_MAX]; NaN never is."""
    if not least <= value <= FLOAT32_MAX:
        raise ValueError(f"{name} must be between {least:g} and {FLOAT32_MAX:g}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Constant:
    """Every element is `value`.

    Raises:
        ValueError: `value` is not a finite float32.
    """

    value: float

    def __post_init__(self) -> None:
        _check("value", self.value, least=-FLOAT32_MAX)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform on [-bound, bound).

    Raises:
        ValueError: `bound` is negative or not a finite float32.
    """

    bound: float

    def __post_init__(self) -> None:
        _check("bound", self.bound, least=0.0)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with mean 0 and standard deviation `std`.

    Raises:
        ValueError: `std` is negative or not a finite float32.
    """

    std: float

    def __post_init__(self) -> None:
        _check("std", self.std, least=0.0)


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """`Normal(std)` conditioned on lying within `cut` standard deviations of 0.

    `std` is the standard deviation before truncation, as in `torch.nn.init.trunc_normal_`: with
    the usual cut of 2, that of the drawn values is 0.8796 times `std`.

    Raises:
        ValueError: `std` is negative or not a finite float32, or `cut` is not above 0 (infinity,
            which truncates nothing, is allowed).
    """

    std: float
    cut: float = 2.0

    def __post_init__(self) -> None:
        _check("std", self.std, least=0.0)
        if math.isnan(self.cut) or self.cut <= 0:
            raise ValueError(f"cut must be above 0, got {self.cut!r}")


@dataclass(frozen=True, slots=True)
class Cycle:
    """Element i, in C order, is i modulo `length`.

    Raises:
        ValueError: `length` is not from 1 to 2**24, up to which float32 has all integers.
    """

    length: int

    def __post_init__(self) -> None:
        if not 1 <= self.length <= 2**24:
            raise ValueError(f"length must be from 1 to 2**24, got {self.length!r}")


Distribution = Constant | Uniform | Normal | TruncatedNormal | Cycle
