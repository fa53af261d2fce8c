"""Descriptions of layers that differ only in numbers, merged into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_LAYERS = 4
"""The most sets of different layers that are described one by one. Of more, those that differ only
in numbers are described as one."""

_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?[kMBT]?"
_RANGE = re.compile(rf"(?<![\w.])({_NUMBER}(?: … {_NUMBER})?)(?![\w.])")


def in_one(a: str, b: str) -> str | None:
    """Merge two texts that differ only in numbers or ranges of numbers: in place of each that
    differs stands a range, from the least to the greatest: `d_ff 8 … 64`. None if they differ in
    more."""
    told, other = _RANGE.split(a), _RANGE.split(b)
    if told[::2] != other[::2]:  # what is around the numbers
        return None
    told[1::2] = [_range(*both) for both in zip(told[1::2], other[1::2], strict=True)]
    return "".join(told)


def folded(items: Sequence[T], as_one: Callable[[T, T], T | None]) -> tuple[list[T], list[int]]:
    """Merge items.

    Args:
        items: the items.
        as_one: merges two items; None if they cannot be merged.

    Returns:
        The items, each merged with the later ones that can be merged with it; and for each of the
        original items the index of the one that it is part of.
    """
    found: list[T] = []
    places: list[int] = []
    for item in items:
        for place, other in enumerate(found):
            if (one := as_one(other, item)) is not None:
                found[place] = one
                break
        else:
            place = len(found)
            found.append(item)
        places.append(place)
    return found, places


def _range(a: str, b: str) -> str:
    ends = sorted({*a.split(" … "), *b.split(" … ")}, key=_value)
    return ends[0] if len(ends) == 1 else f"{ends[0]} … {ends[-1]}"


def _value(number: str) -> float:
    digits = number.rstrip("kMBT")
    return float(digits.replace(",", "")) * _UNITS.get(number[len(digits) :], 1)
