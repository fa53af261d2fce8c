"""The `config.json` of a published checkpoint, with the defaults that it may omit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zoo.errors import Place, Problem
from zoo.families.defaults import Defaults
from zoo.json_files import JsonFile

_INTEGER, _NUMBER = "an integer", "a number"
_KINDS = ((bool, "true or false"), (int, _INTEGER), (float, _NUMBER), (str, "a string"))


class Config(Mapping[str, Any]):
    """A configuration: the values of the file over the defaults of the family, and these over those
    of the model type.

    It is read by key, under any spelling. `read` records the keys that were read, even if they have
    no value, so that values that are never read can be reported, and wrong values at their places.
    """

    def __init__(
        self, file: JsonFile, defaults: Defaults, family_defaults: Mapping[str, Any]
    ) -> None:
        self.file = file
        self.defaults = defaults
        self._spellings: dict[str, list[str]] = {}
        for one, other in defaults.spellings.items():
            self._spellings.setdefault(one, []).append(other)
            self._spellings.setdefault(other, []).append(one)
        self._values = dict(defaults.values)
        for key, value in family_defaults.items():
            self._values.update(dict.fromkeys((key, *self._spellings.get(key, ())), value))
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        for values in (self.file.data, self._values):
            for name in (key, *self._spellings.get(key, ())):
                if name in values:
                    self.read.add(name)
                    return values[name]
        self.read.add(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self.file.data})

    def __len__(self) -> int:
        return len({**self._values, **self.file.data})

    def stated_otherwise(self, other: Config) -> set[str]:
        """Return the keys, under all spellings, that this file and another's do not state with one
        and the same value."""
        one, two, absent = self.file.data, other.file.data, object()
        keys = [key for key in {**one, **two} if one.get(key, absent) is not two.get(key, absent)]
        return {name for key in keys for name in (key, *self._spellings.get(key, ()))}

    def wrong_types(self, ignored: frozenset[str]) -> list[Problem]:
        """Return the values of the file with another type than their defaults, except `ignored`
        ones."""
        return [
            Problem(f"`{key}` must be {expected}, not {json.dumps(value)}", self.file.place(key))
            for key, value in self.file.data.items()
            if key not in ignored and (expected := self._other_type(key, value))
        ]

    def _other_type(self, key: str, value: Any) -> str | None:
        """Return the type that a key's value should have, if it has another."""
        name = self.defaults.spellings.get(key, key)
        if value is not None and name not in self.defaults.mixed:
            return _type_of_default(self._values.get(key), value)
        if value is None and name in self.defaults.values and name not in self.defaults.nullable:
            return _kind(self._values[name])
        return None

    def contradictions(self) -> list[Problem]:
        """Return the spellings of one key for which the file has different values; transformers
        uses the last one."""
        data = self.file.data
        return [
            Problem(
                f"`{one}` is {json.dumps(data[one])} and `{other}` is {json.dumps(data[other])}; "
                "they mean the same",
                self.file.place(one),
            )
            for one, other in self.defaults.spellings.items()
            if one in data and other in data and data[one] != data[other]
        ]

    def unread(self, inert: frozenset[str]) -> list[Problem]:
        """Return the values that differ from the defaults and were never read, except `inert`
        ones, whose keys may have any spelling."""
        known = self._values
        considered = self.read.union(inert, *(self._spellings.get(key, ()) for key in inert))
        return [
            not_read(f"`{key}`", value, known[key], self.file.place(key))
            for key, value in self.file.data.items()
            if key in known and value != known[key] and key not in considered
        ]


def not_read(what: str, value: Any, default: Any, place: Place) -> Problem:
    """The problem that no expression of a family reads a value that is not the default."""
    return Problem(
        f"{what} is {json.dumps(value)}, and nothing reads it; only its default, "
        f"{json.dumps(default)}, is supported",
        place,
        help="a family file that reads it, or lists it under `ignores`, would be needed",
    )


def _type_of_default(default: Any, value: Any) -> str | None:
    """Return the type of a default, if a value that is not null has another."""
    if default is None or value is None:
        return None
    if isinstance(value, list) and not isinstance(default, list):  # perhaps one for each layer
        return next((kind for item in value if (kind := _type_of_default(default, item))), None)
    kind, found = _kind(default), _kind(value)
    return None if found == kind or (kind, found) == (_NUMBER, _INTEGER) else kind


def _kind(value: Any) -> str | None:
    """Return the name of a value's type; None for tables, lists and null."""
    return next((name for type_, name in _KINDS if isinstance(value, type_)), None)
