"""The values of fields in JSON lines and data sets: texts, and lists of words or labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from zoo.training.split import Words


class NoFieldError(Exception):
    """An example has no such field."""


def field(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field, with dots for nested fields. Raises `NoFieldError`."""
    try:
        return reduce(lambda inner, key: inner[key], name.split("."), row)
    except (KeyError, TypeError):
        raise NoFieldError(name) from None


def value(found: Any, names: Sequence[str] | None = None) -> str | Words:
    """A text, or a list of texts, from the value of a field. No value is an empty text, and a
    number is the text that it is written as or, if there are `names` of numbers, its name."""
    if isinstance(found, list | tuple):
        return tuple(_text(one, names) for one in found)
    return _text(found, names)


def _text(found: Any, names: Sequence[str] | None) -> str:
    if found is None:
        return ""
    if names is not None and type(found) is int and 0 <= found < len(names):
        return names[found]
    return str(found)


def stripped(side: str | Words) -> str | Words:
    """A side of a pair without the white space around it."""
    return tuple(one.strip() for one in side) if isinstance(side, tuple) else side.strip()
