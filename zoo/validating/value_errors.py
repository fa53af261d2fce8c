"""Translate the validation errors of pydantic to messages of the zoo; `Format` makes its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import ErrorDetails, PydanticKnownError

from zoo.document import Document, KeyPath
from zoo.errors import Problem
from zoo.resolving.tables import described
from zoo.wording import counted, did_you_mean, nearest, quoted

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "string_type": "a string",
    "tuple_type": "an array",
    "list_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
    "invalid-json-value": "plain data, as in JSON",
}


def _integer(written: object) -> object:
    """Refuse what only equals 1 in Python: `true` and `1.0`."""
    if type(written) is int:
        return written
    raise PydanticKnownError("literal_error", {"expected": "1"})


Format = Annotated[Literal[1], BeforeValidator(_integer)]
"""The integer 1: the `format` that files state whose tables pydantic reads."""


def key_problem(
    document: Document, path: KeyPath, same: Sequence[ErrorDetails], known: Collection[str]
) -> Problem:
    """Return the problem of a key, of which pydantic says all of these, in a table that can have
    the keys `known`; of a table, if its keys contradict each other."""
    kind = same[0]["type"]
    place = document.place(path, value=kind != "extra_forbidden")
    if kind == "value_error":
        return Problem(value_message(*same), place)
    key = str(path[-1])
    if kind == "extra_forbidden":
        return Problem(f"unknown key {quoted(key)}", place, did_you_mean(key, known))
    if kind == "missing":
        return Problem(f"the key {quoted(key)} is missing", place)
    return Problem(f"{quoted(key)} {value_message(*same)}", place, nearest_literal(same))


def value_message(*same: ErrorDetails) -> str:
    """Return the message for one value. Several errors come from the members of a union."""
    first = same[0]
    if first["type"] in ("value_error", "contradiction"):
        return first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":  # an error for each of the last items of an array
        n_items = len(first["input"])
        return f"must have {counted(n_items + len(same), 'item')}, not {n_items}"
    if first["type"] in ("string_too_short", "string_too_long"):
        bound = first["msg"].partition(" should have ")[2]
        return f"must have {bound}, not {len(first['input'])}"
    if first["type"] in ("too_short", "too_long"):  # "Tuple should have at least 1 item after ..."
        bound = first["msg"].partition(" should have ")[2].partition(" after ")[0]
        return f"must have {bound}, not {first.get('ctx', {})['actual_length']}"
    expected = dict.fromkeys(_expected(details) for details in same)
    return f"must be {' or '.join(expected)}, not {described(first['input'])}"


def _expected(details: ErrorDetails) -> str:
    if details["type"] == "literal_error":
        names = [f"`{name}`" for name in _literals(details)]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    if details["type"] == "string_pattern_mismatch":
        return f"a string that matches `{details.get('ctx', {})['pattern']}`"
    message = details["msg"].removeprefix("Input should be ")
    message = message.replace("greater than or equal to", "at least")
    message = message.replace("less than or equal to", "at most")
    return _EXPECTED.get(details["type"], message)


def path_in(value: Any, location: Sequence[str | int]) -> KeyPath:
    """Return the part of pydantic's location that is a path in the value; the rest names members of
    a union, or a missing key."""
    path: list[str | int] = []
    for part in location:
        if isinstance(value, dict):
            is_inside = part in value
        else:
            is_array = isinstance(value, list | tuple)
            is_inside = is_array and isinstance(part, int) and part < len(value)
        if is_inside:
            value = value[part]
            path.append(part)
    return tuple(path)


def deepest(value: Any, same: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors, of several for one key of a value, whose paths in it are the longest: for
    a union, these are the nearest misses."""
    depths = [len(path_in(value, details["loc"])) for details in same]
    most = max(depths)
    return [details for details, depth in zip(same, depths, strict=True) if depth == most]


def nearest_literal(same: Sequence[ErrorDetails]) -> str | None:
    """Return a hint with the most similar of the allowed values; None if none is similar."""
    errors = (error for error in same if error["type"] == "literal_error")
    known = [name for error in errors for name in _literals(error)]
    written = same[0]["input"]
    near = nearest(written, known) if isinstance(written, str) else None
    return f"did you mean `{near}`?" if near else None


def _literals(details: ErrorDetails) -> list[str]:
    expected = str(details.get("ctx", {})["expected"])
    return [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")]
