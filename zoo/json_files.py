"""Reading files that hold one JSON object, with the places of its keys."""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from zoo.document import Document
from zoo.errors import Place, WeightsError
from zoo.files.endless import check_ends
from zoo.files.hints import inside
from zoo.files.pointer import check_is_whole
from zoo.wording import quoted

MAX_BYTES = 10_000_000
_TOKEN = re.compile(r'[][{}]|(?P<string>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?')


@dataclass(frozen=True)
class JsonFile:
    """A JSON object that was read from a file."""

    path: Path
    data: dict[str, Any]
    text: str

    def place(self, *keys: str) -> Place:
        """Return the place of a key: of the outermost object, or with several keys, of the objects
        to which those before it lead. If there is no such key, it is the file without a line."""
        start = end = 0
        for key in keys:
            if (end, key) not in self._spans:
                return Place(str(self.path))
            start, end = self._spans[end, key]
        return self._document.at_offset(start, end - start) if keys else Place(str(self.path))

    @cached_property
    def _document(self) -> Document:
        return Document(str(self.path), self.data, self.text)

    @cached_property
    def _spans(self) -> Mapping[tuple[int, str], tuple[int, int]]:
        """The start and end of every key in the text, with its quotes, by the end of the key of the
        object that it is in (0 for the outermost), and its name. The text is known to be JSON."""
        spans: dict[tuple[int, str], tuple[int, int]] = {}
        objects: list[int] = []
        latest = 0
        for token in _TOKEN.finditer(self.text):
            if token[0] == "{":
                objects.append(latest)
            elif token[0] == "[":
                objects.append(latest := -1)  # nothing in an array has a place
            elif token[0] in ("}", "]"):
                objects.pop()
            elif token["colon"]:
                spans[objects[-1], json.loads(token["string"])] = token.span("string")
                latest = token.end("string")
        return spans


def read_json(path: Path) -> JsonFile:
    """Read a file that holds one JSON object.

    Raises:
        WeightsError: it is missing, too large, not JSON, or not an object.
    """
    return parse_json(path, read_bytes(path))


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Read the object of a file, which is empty if there is no file. Raises as `read_json`."""
    return read_json(path).data if os.path.lexists(path) else {}


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a JSON file. Raises `WeightsError` if it is missing or too large."""
    place = Place(str(path))
    try:
        check_ends(path)
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = inside(path.parent) if isinstance(error, FileNotFoundError) else None
        raise WeightsError(f"cannot be read: {error.strerror}", place, hint) from None
    if len(raw) > MAX_BYTES:
        raise WeightsError(f"larger than {MAX_BYTES:,} bytes", place)
    return raw


def parse_json(path: Path, raw: bytes) -> JsonFile:
    """Read the bytes of a file that holds one JSON object. Raises as `read_json`.

    A limit that is `Infinity`, which is no JSON, is read as `{"__float__": "Infinity"}`, which is
    how `transformers` writes it since its version 5.
    """
    data = json_value(path, raw, partial(strict_json, parse_constant=_limit))
    if not isinstance(data, dict):
        raise WeightsError("an object is expected", Place(str(path)))
    return JsonFile(path, cast("dict[str, Any]", data), raw.decode("utf-8"))


def json_value(path: Path, raw: bytes, loads: Callable[[str], Any] = json.loads) -> Any:
    """Parse the bytes of a file by `loads`.

    Raises:
        WeightsError: they are not JSON, or those of a pointer; the error has the place.
    """
    place = Place(str(path))
    if raw.startswith(BOM_UTF8):
        help_ = "save it as UTF-8 without one; other programs do not read it either"
        raise WeightsError("not JSON: it begins with a byte order mark", place, help_)
    check_is_whole(raw, place)
    try:
        return loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        quote = error.doc.split("\n")[error.lineno - 1]
        place = Place(str(path), error.lineno, error.colno, quote)
        raise WeightsError(f"not JSON: {error.msg}", place) from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"not JSON: {error}", place) from None


class NotStrictError(ValueError):
    """Something that Python reads as JSON, and `strict_json` does not."""


def strict_json(text: str, **options: Any) -> Any:
    """As `json.loads`, whose `options` it takes, but refuses duplicate keys, and NaN and infinite
    numbers unless there is a `parse_constant`, by a `NotStrictError`."""
    hooks = {"object_pairs_hook": _without_duplicates, "parse_constant": _no_constant}
    return json.loads(text, **(hooks | options))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise NotStrictError(f"the key {quoted(twice)} is written twice")
    return data


def _no_constant(name: str) -> Any:
    raise NotStrictError(f"{name} is no number")


def _limit(name: str) -> dict[str, str]:
    if name == "NaN":
        _no_constant(name)
    return {"__float__": name}
