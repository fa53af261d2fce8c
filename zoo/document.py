"""TOML text in, plain data with places out: the border where a spec or registry is read.

Values come from `tomllib`. Places (line and column of every key and value) come from the
tree-sitter grammar of TOML and are worked out only when a problem has to be shown.
"""

from __future__ import annotations

import math
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import Place, Problem, SpecError, did_you_mean, quoted

if TYPE_CHECKING:
    from zoo.toml_places import Places

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_KEY_DEPTH = 32
MAX_INTEGER = 2**53 - 1  # the largest integer that JSON readers agree on (RFC 8785, section 3.2.2.3)

_DEEP_KEY = re.compile(r"(?:[A-Za-z0-9_\-\"']+[ \t]*\.[ \t]*){%d}" % MAX_KEY_DEPTH)
_AT = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


class Document:
    """Named data, with the text that it was read from when there is one."""

    def __init__(self, name: str, data: dict[str, Any], text: str | None = None) -> None:
        self.name = name
        self.data = data
        self.text = text

    @cached_property
    def _places(self) -> Places:
        from zoo.toml_places import find_places

        return find_places(self.text or "")

    def place(self, path: KeyPath, *, value: bool = False) -> Place:
        """Where the key at `path` stands, or its value; the nearest enclosing key if it is absent."""
        if self.text is None:
            where = ".".join(map(str, path))
            return Place(f"{self.name}: {where}" if where else self.name)
        while path:
            if spans := self._places.spans.get(path):
                return self._place_of(spans[1] if value else spans[0])
            path = path[:-1]
        return Place(self.name)

    def duplicates(self) -> list[Problem]:
        """Keys that are written twice, each with both places."""
        return [
            Problem(
                f"the key {quoted('.'.join(map(str, path)))} is written twice",
                self._place_of(again),
                help="keep one of the two",
                related=(("first written here", self._place_of(first)),),
            )
            for path, first, again in self._places.duplicates
        ]

    def _place_of(self, span: tuple[int, int, int]) -> Place:
        line, column, width = span
        return self.at(line, column, width)

    def at(self, line: int, column: int, width: int = 1) -> Place:
        """The place at a line and a column, both from 1."""
        lines = (self.text or "").split("\n")
        quote = lines[line - 1].rstrip("\r") if line <= len(lines) else ""
        return Place(self.name, line, column, quote, width)


def read_document(path: Path) -> Document:
    """Read a TOML file.

    Raises:
        SpecError: it is missing, a directory, unreadable, too large, not UTF-8, empty, not TOML,
            or holds a value that no spec may hold (a date, nan, inf, an integer beyond 2**53 - 1).
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        found = did_you_mean(path.name, siblings) if siblings else "there is no TOML file there"
        raise SpecError(Problem(f"{quoted(name)} does not exist", help=found)) from None
    except IsADirectoryError:
        raise SpecError(
            Problem(f"{quoted(name)} is a directory", help="name a .toml file in it")
        ) from None
    except OSError as error:
        raise SpecError(f"{quoted(name)} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(Problem(f"larger than {MAX_BYTES:,} bytes", Place(name)))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        head = raw[: error.start].decode("utf-8")
        line = head.count("\n") + 1
        column = len(head) - (head.rfind("\n") + 1) + 1
        raise SpecError(
            Problem(
                f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}",
                Place(name, line, column),
                help="save the file as UTF-8",
            )
        ) from None
    return parse(text, name)


def parse(text: str, name: str) -> Document:
    """Parse TOML text; `name` stands for it in messages. Raises `SpecError` as `read_document`."""
    if not text.strip():
        raise SpecError(Problem("the file is empty", Place(name), help="see `zoo list models`"))
    if deep := _DEEP_KEY.search(text):
        line = text.count("\n", 0, deep.start()) + 1
        column = deep.start() - (text.rfind("\n", 0, deep.start()) + 1) + 1
        raise SpecError(
            Problem(f"a key of more than {MAX_KEY_DEPTH} parts", Place(name, line, column))
        )
    document = Document(name, {}, text)
    try:
        document.data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(_syntax_problems(document, str(error))) from None
    except RecursionError:
        raise SpecError(Problem("values are nested too deeply", Place(name))) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise SpecError(Problem(f"not TOML: {error}", Place(name))) from None
    if problems := _value_problems(document):
        raise SpecError(problems)
    return document


def from_data(data: dict[str, Any], name: str) -> Document:
    """A document made of data that was not read from text, checked like one that was."""
    document = Document(name, data)
    if problems := _value_problems(document):
        raise SpecError(problems)
    return document


def _syntax_problems(document: Document, message: str) -> list[Problem]:
    if duplicates := document.duplicates():
        return duplicates
    lines = (document.text or "").split("\n")
    at = _AT.search(message)
    line, column = (int(at[1]), int(at[2])) if at and at[1] else (len(lines), len(lines[-1]) + 1)
    what = _AT.sub("", message).strip()
    return [Problem(f"not TOML: {what[:1].lower() + what[1:]}", document.at(line, column))]


def _value_problems(document: Document) -> list[Problem]:
    problems: list[Problem] = []

    def refuse(path: KeyPath, message: str) -> None:
        problems.append(Problem(message, document.place(path, value=True)))

    def walk(value: object, path: KeyPath) -> None:
        if len(path) > MAX_KEY_DEPTH:
            refuse(path, f"nested more than {MAX_KEY_DEPTH} deep")
        elif isinstance(value, dict):
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                if isinstance(key, str):
                    walk(item, (*path, key))
                else:
                    refuse(path, f"the key {key!r} is not a string")
        elif isinstance(value, list):
            for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                walk(item, (*path, index))
        elif isinstance(value, bool | str):
            return
        elif isinstance(value, int):
            if abs(value) > MAX_INTEGER:
                refuse(path, f"an integer beyond {MAX_INTEGER:,}")
        elif isinstance(value, float):
            if not math.isfinite(value):
                refuse(path, f"`{value}` is not a finite number")
        else:
            refuse(path, f"a {type(value).__name__} has no place in a spec")

    walk(document.data, ())
    return problems
