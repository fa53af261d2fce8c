"""The `config.json` of a published checkpoint, with the defaults that it may omit."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from zoo.document import Document
from zoo.endless_files import check_ends
from zoo.errors import Place, Problem, WeightsError
from zoo.file_hints import inside

FILE_NAME = "config.json"
_INTEGER, _NUMBER = "an integer", "a number"
_KINDS = ((bool, "true or false"), (int, _INTEGER), (float, _NUMBER), (str, "a string"))
MAX_BYTES = 10_000_000
_TOKEN = re.compile(r'[][{}]|(?P<string>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?')


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of a model type for what `config.json` omits; `spellings`, which maps keys to
    alternative keys; and the keys that may be null although their default is not."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    nullable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JsonFile:
    """A JSON object that was read from a file."""

    path: Path
    data: dict[str, Any]
    text: str

    def place(self, *keys: str) -> Place:
        """Return the place of a key of the object, or with further keys, of a key in the object
        that it has; only the file if there is no such key."""
        if keys not in self._spans:
            return Place(str(self.path))
        start, end = self._spans[keys]
        return self._document.at_offset(start, end - start)

    @cached_property
    def _document(self) -> Document:
        return Document(str(self.path), self.data, self.text)

    @cached_property
    def _spans(self) -> Mapping[tuple[str, ...], tuple[int, int]]:
        """The start and end of every key in the text, with its quotes. The text is known to be
        JSON."""
        spans: dict[tuple[str, ...], tuple[int, int]] = {}
        keys: list[str] = []
        for token in _TOKEN.finditer(self.text):
            if token[0] in ("{", "["):
                keys.append("")
            elif token[0] in ("}", "]"):
                keys.pop()
            elif token["colon"]:
                keys[-1] = json.loads(token["string"])
                spans[tuple(keys)] = token.span("string")
        return spans


def read_json(path: Path) -> JsonFile:
    """Read a file that holds one JSON object.

    Raises:
        WeightsError: it is missing, too large, not JSON, or not an object.
    """
    return parse_json(path, read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a JSON file. Raises `WeightsError` if it is missing or too large."""
    place = Place(str(path))
    try:
        check_ends(path)
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = inside(path.parent) if isinstance(error, FileNotFoundError) else None
        raise WeightsError(Problem(f"cannot be read: {error.strerror}", place, hint)) from None
    if len(raw) > MAX_BYTES:
        raise WeightsError(Problem(f"larger than {MAX_BYTES:,} bytes", place))
    return raw


def parse_json(path: Path, raw: bytes) -> JsonFile:
    """Read the bytes of a file that holds one JSON object. Raises as `read_json`."""
    data = json_value(path, raw, strict_json)
    if not isinstance(data, dict):
        raise WeightsError(Problem("an object is expected", Place(str(path))))
    return JsonFile(path, cast("dict[str, Any]", data), raw.decode("utf-8"))


def json_value(path: Path, raw: bytes, loads: Callable[[str], Any] = json.loads) -> Any:
    """Parse the bytes of a file by `loads`.

    Raises:
        WeightsError: they are not JSON; the error has the place.
    """
    place = Place(str(path))
    if raw.startswith(BOM_UTF8):
        help_ = "save it as UTF-8 without one; other programs do not read it either"
        raise WeightsError(Problem("not JSON: it begins with a byte order mark", place, help_))
    try:
        return loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        quote = error.doc.split("\n")[error.lineno - 1]
        place = Place(str(path), error.lineno, error.colno, quote)
        raise WeightsError(Problem(f"not JSON: {error.msg}", place)) from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(Problem(f"not JSON: {error}", place)) from None


def strict_json(text: str, **options: Any) -> Any:
    """As `json.loads`, whose `options` it takes, but refuses duplicate keys and NaN."""
    return json.loads(
        text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant, **options
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is written twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


class Config(Mapping[str, Any]):
    """A configuration: the values of the file over the defaults of the family and the model type.

    It is read by key, under any spelling. `read` records the keys that were read, so that values
    that are never read can be reported, and wrong values at their places.
    """

    def __init__(
        self, file: JsonFile, defaults: Defaults, family_defaults: Mapping[str, Any]
    ) -> None:
        self.file = file
        self.defaults = defaults
        self._values = {**family_defaults, **defaults.values}
        self._spellings: dict[str, list[str]] = {}
        for one, other in defaults.spellings.items():
            self._spellings.setdefault(one, []).append(other)
            self._spellings.setdefault(other, []).append(one)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        for values in (self.file.data, self._values):
            for name in (key, *self._spellings.get(key, ())):
                if name in values:
                    self.read.add(name)
                    return values[name]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self.file.data})

    def __len__(self) -> int:
        return len({**self._values, **self.file.data})

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
        if value is not None:
            return _type_of_default(self._values.get(key), value)
        name = self.defaults.spellings.get(key, key)
        return None if name in self.defaults.nullable else _kind(self.defaults.values.get(name))

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
        ones."""
        known = self._values
        return [
            Problem(
                f"`{key}` is {json.dumps(value)}, and nothing reads it; only its default, "
                f"{json.dumps(known[key])}, is supported",
                self.file.place(key),
                help="a family file that reads it, or lists it under `ignores`, would be needed",
            )
            for key, value in self.file.data.items()
            if key in known and value != known[key] and key not in self.read | inert
        ]


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
