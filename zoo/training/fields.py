"""The values of fields in JSON lines and data sets: texts, and lists of words or labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

from zoo.errors import Problem, TrainingError
from zoo.training.data_tables import two_of
from zoo.training.split import Words
from zoo.wording import did_you_mean, quoted


def field(row: Mapping[str, Any], name: str, names: Sequence[str] | None = None) -> str | Words:
    """A text, or a list of texts, from the value of a field, with dots for nested fields. No value
    is an empty text; `true` and `false` are texts, and so is a number or, if there are `names` of
    numbers, its name. A number without a name, such as the -1 of examples whose labels are kept
    secret, is no value.

    Raises:
        TrainingError: there is no such field, it has fields itself, or a value in it is no text; or
            a list has a value that is none.
    """
    try:
        found = nested(row, name)
    except (KeyError, TypeError):
        hint = did_you_mean(name, row, f"it has: {', '.join(row) or 'none'}")
        raise TrainingError(Problem(f"there is no field {quoted(name)}", help=hint)) from None
    if isinstance(found, Mapping):
        message = f"the field {quoted(name)} is not one text or label, but several values"
        fields = ", ".join(quoted(f"{name}.{key}") for key in found)
        raise TrainingError(Problem(message, help=f"name one of them: {fields}"))
    if not isinstance(found, list | tuple):
        return _text(found, name, names)
    for number, one in enumerate(found, 1):
        if one is None or isinstance(one, Mapping | list | tuple):
            what = "a table" if isinstance(one, Mapping) else "null" if one is None else "a list"
            message = f"value {number} of the field {quoted(name)} is {what}, and no text or label"
            raise TrainingError(message)
    return tuple(_text(one, name, names) for one in found)


def nested(row: Mapping[str, Any], name: str) -> Any:
    """What a row has under a name, with dots for nested fields unless the name itself has them.
    Raises KeyError or TypeError if there is nothing."""
    return row[name] if name in row else reduce(lambda inner, key: inner[key], name.split("."), row)


def _text(found: Any, name: str, names: Sequence[str] | None) -> str:
    if found is None:
        return ""
    if isinstance(found, bool):
        return "true" if found else "false"
    if names is not None and isinstance(found, int):
        return names[found] if 0 <= found < len(names) else ""
    if isinstance(found, str | int | float | Decimal | date | time):
        text = str(found)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            message = f"the field {quoted(name)} has half of a character, `{half}`, and is no text"
            raise TrainingError(message) from None
        return text
    kind = type(found).__name__
    raise TrainingError(f"the field {quoted(name)} is no text or label, but of the type {kind}")


class RowSides(NamedTuple):
    """The sides of a row; `source` is None of text, and `second` of what is no pair of texts."""

    source: str | Words | None
    target: str | Words
    second: str | Words | None = None


def sides_of_row(
    row: Mapping[str, Any],
    source: str | tuple[str, str],
    target: str,
    names: Sequence[str] | None = None,
) -> RowSides:
    """The sides in these fields of a row, without the white space around them; `names` are those of
    numbers of the target. Raises TrainingError as `field`."""
    first, second = two_of(source)
    read, wanted = field(row, first), field(row, target, names)
    other = None if second is None else _stripped(field(row, second))
    return RowSides(_stripped(read), _stripped(wanted), other)


def _stripped(side: str | Words) -> str | Words:
    return tuple(one.strip() for one in side) if isinstance(side, tuple) else side.strip()
