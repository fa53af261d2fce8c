"""The values of fields in JSON lines and data sets: texts, and lists of words or labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from zoo.errors import Problem, TrainingError
from zoo.training.split import Words
from zoo.training.tables import two_of
from zoo.wording import did_you_mean, quoted


def field(row: Mapping[str, Any], name: str, names: Sequence[str] | None = None) -> str | Words:
    """A text, or a list of texts, from the value of a field, with dots for nested fields. No value
    is an empty text, and a number is the text that it is written as or, if there are `names` of
    numbers, its name.

    Raises:
        TrainingError: there is no such field, or it has fields itself.
    """
    try:
        found = reduce(lambda inner, key: inner[key], name.split("."), row)
    except (KeyError, TypeError):
        hint = did_you_mean(name, row, f"it has: {', '.join(row)}")
        raise TrainingError(Problem(f"there is no field {quoted(name)}", help=hint)) from None
    if isinstance(found, Mapping):
        message = f"the field {quoted(name)} is not one text or label, but several values"
        fields = ", ".join(quoted(f"{name}.{key}") for key in found)
        raise TrainingError(Problem(message, help=f"name one of them: {fields}"))
    if isinstance(found, list | tuple):
        return tuple(_text(one, names) for one in found)
    return _text(found, names)


def _text(found: Any, names: Sequence[str] | None) -> str:
    if found is None:
        return ""
    if names is not None and type(found) is int and 0 <= found < len(names):
        return names[found]
    return str(found)


class RowSides(NamedTuple):
    """The sides of a row, without the white space around them; `second` is None of what is no pair
    of texts."""

    source: str | Words
    target: str | Words
    second: str | Words | None


def sides_of_row(
    row: Mapping[str, Any],
    source: str | tuple[str, str],
    target: str,
    names: Sequence[str] | None = None,
) -> RowSides:
    """The sides in these fields of a row; `names` are those of numbers of the target. Raises
    TrainingError as `field`."""
    first, second = two_of(source)
    read, wanted = field(row, first), field(row, target, names)
    other = None if second is None else _stripped(field(row, second))
    return RowSides(_stripped(read), _stripped(wanted), other)


def _stripped(side: str | Words) -> str | Words:
    return tuple(one.strip() for one in side) if isinstance(side, tuple) else side.strip()
