"""The values of fields in JSON lines and data sets: texts, lists of words or labels, and chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from zoo.errors import TrainingError, placing
from zoo.training.data_tables import Datasets, Rows, two_of
from zoo.training.example import Words
from zoo.training.line import Line, Where
from zoo.wording import did_you_mean, quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats


def field(row: Mapping[str, Any], name: str, names: Sequence[str] | None = None) -> str | Words:
    """A text, or a list of texts, from the value of a field, with dots for nested fields. No value
    is an empty text; `true` and `false` are texts, and so is a number or, if there are `names` of
    numbers, its name. A number without a name, such as the -1 of examples whose labels are kept
    secret, is no value.

    Raises:
        TrainingError: there is no such field, it has fields itself, or a value in it is no text; or
            a list has a value that is none.
    """
    found = _found(row, name)
    if isinstance(found, Mapping):
        message = f"the field {quoted(name)} is not one text or label, but several values"
        fields = ", ".join(quoted(f"{name}.{key}") for key in found)
        raise TrainingError(message, help=f"name one of them: {fields}")
    if not isinstance(found, list | tuple):
        return _text(found, name, names)
    for number, one in enumerate(found, 1):
        if one is None or isinstance(one, Mapping | list | tuple):
            what = "a table" if isinstance(one, Mapping) else "null" if one is None else "a list"
            message = f"value {number} of the field {quoted(name)} is {what}, and no text or label"
            raise TrainingError(message)
    return tuple(_text(one, name, names) for one in found)


def _found(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field. Raises TrainingError if there is none."""
    try:
        return nested(row, name)
    except (KeyError, TypeError):
        hint = did_you_mean(name, row, f"it has: {', '.join(row) or 'none'}")
        raise TrainingError(f"there is no field {quoted(name)}", help=hint) from None


def nested(row: Mapping[str, Any], name: str) -> Any:
    """What a row has under a name, with dots for nested fields unless the name itself has them.
    Raises KeyError or TypeError if there is nothing."""
    return row[name] if name in row else reduce(lambda inner, key: inner[key], name.split("."), row)


def _text(found: Any, name: str, names: Sequence[str] | None) -> str:
    if found is None:
        return ""
    if isinstance(found, bool):
        return "true" if found else "false"
    if names is not None:
        return names[found] if 0 <= found < len(names) else ""
    if isinstance(found, str | int | float | Decimal | date | time):
        text = str(found)
        _check_whole(text, name)
        return text
    kind = type(found).__name__
    raise TrainingError(f"the field {quoted(name)} is no text or label, but of the type {kind}")


def _check_whole(text: str, name: str) -> None:
    """Raise TrainingError if the text of a field has half of a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        message = f"the field {quoted(name)} has half of a character, `{half}`, and is no text"
        raise TrainingError(message) from None


def lines_of_row(
    row: Mapping[str, Any],
    data: Rows,
    at: Where,
    chats: Chats | None,
    names: Sequence[str] | None = None,
) -> list[Line]:
    """The sides in the fields of a row: one example, but of a chat those that `chats` makes of it.

    Args:
        row: the values of its fields.
        data: names the fields.
        at: where it is.
        chats: writes chats; None for other data.
        names: the names of numbers of the target.

    Raises:
        TrainingError: as `field` and `Chats.examples`.
    """
    with placing(at.place()):
        if data.target is None:
            assert chats is not None  # for the chats that there are then
            name = str(data.messages)
            tools = data.tools or ("tools" if "tools" in row else None)
            chat, callable_ = _found(row, name), None if tools is None else _found(row, tools)
            if isinstance(data, Datasets):
                chat, callable_ = _without_nulls(chat), _without_nulls(callable_)
            found = chats.examples(chat, name, callable_)
            for one in found:
                _check_whole("".join((*one.prompts, *one.targets)), name)
            return [Line(one.source, one.target, at, at, opening=one.opening) for one in found]
        wanted = field(row, data.target, names)
        if data.source is None:
            return [Line(None, wanted, at, at)]
        first, second = two_of(data.source)
        other = None if second is None else field(row, second)
        return [Line(field(row, first), wanted, at, at, other)]


def _without_nulls(value: Any) -> Any:
    """A value without the keys in it that are null. Arrow gives all tables of a column the same
    keys, so that a call of one tool would have the arguments of all others."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list | tuple) else value
