"""Whole numbers that are arguments, checked where they come in."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard

from zoo.errors import InputError


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is an integer, of NumPy too, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: object) -> int:
    """Return an argument that is a number of things, as an int.

    Raises:
        InputError: it is no integer, or below 1.
    """
    if not is_whole(value) or int(value) < 1:
        raise InputError(f"`{name}` is an integer of at least 1, not {value!r:.80}")
    return int(value)


def check_seed(value: object) -> int:
    """Return a seed of initial weights, as an int.

    Raises:
        InputError: it is no integer from 0 to 2**64 - 1.
    """
    if not is_whole(value) or not 0 <= int(value) < 2**64:
        raise InputError(f"`seed` is an integer from 0 to 2**64 - 1, not {value!r:.80}")
    return int(value)
