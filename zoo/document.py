"""Read TOML text into plain data with places; specs and registries enter the zoo here.

Values come from `tomllib`. Places (line and column of every key and value) come from the
tree-sitter grammar of TOML, and are computed only when a problem is reported.
"""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_right
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.budget import Budget, raising
from zoo.errors import Place, Problem, SpecError
from zoo.files.endless import check_ends
from zoo.toml.limits import too_deep
from zoo.wording import PATH, dotted, nearest, quoted

if TYPE_CHECKING:
    from zoo.toml.places import Places

KeyPath = tuple[str | int, ...]
"""The keys and indices of a value in nested tables and arrays."""

DEFAULT_BUDGET = Budget()


class Document:
    """Named data, and the text that it was read from, if any.

    `problems` are those that do not prevent reading the rest: keys that are written twice, of which
    the first counts. The reader of a document reports them. `max_depth` is the allowed depth of
    nested keys. `stored` says that the zoo wrote the document, possibly an earlier version, and
    `made_with` by what its writer had the plugins, by `slot.kind`.
    """

    def __init__(
        self,
        name: str,
        data: dict[str, Any],
        text: str | None = None,
        max_depth: int = DEFAULT_BUDGET.key_depth,
        *,
        stored: bool = False,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.stored = stored
        self.made_with = made_with or {}
        self.data = data
        self.text = text
        self.max_depth = max_depth
        self.problems: list[Problem] = []

    @cached_property
    def places(self) -> Places:
        """The places of the keys and values in the text."""
        from zoo.toml.places import find_places

        return find_places(self.text or "")

    @cached_property
    def _lines(self) -> list[str]:
        """The lines without their ends. All places in one line share its text."""
        return [line.rstrip("\r") for line in (self.text or "").split("\n")]

    @cached_property
    def _starts(self) -> list[int]:
        """The offset in the text at which each line begins."""
        return [0, *(end.end() for end in re.finditer("\n", self.text or ""))]

    def holds(self, path: KeyPath) -> bool:
        """Return whether there is a value at this path."""
        value: Any = self.data
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return False
        return True

    def place(self, path: KeyPath, *, value: bool = False) -> Place:
        """Return the place of the key at `path`, or of its value; if it is absent, that of the
        nearest enclosing key, or the start of the text."""
        if self.text is None:
            where = dotted(path)
            return Place(f"{self.name}: {where}" if where else self.name)
        while path:
            if spans := self.places.spans.get(path):
                return self.at(*(spans[1] if value else spans[0]))
            path = path[:-1]
        return self.at(1, 1)

    def at(self, line: int, column: int, width: int = 1) -> Place:
        """Return the place at a line and a column, both counted from 1."""
        quote = self._lines[line - 1] if line <= len(self._lines) else ""
        return Place(self.name, line, column, quote, width)

    def at_offset(self, offset: int, width: int = 1) -> Place:
        """Return the place of `width` characters, by the offset of the first in the text."""
        line = bisect_right(self._starts, offset)
        return self.at(line, offset - self._starts[line - 1] + 1, width)


def read_document(
    path: Path, named: Callable[[], Place] | None = None, *, budget: Budget = DEFAULT_BUDGET
) -> Document:
    """Read a TOML file; `named` returns the place where another file names this one, if one does.

    Raises:
        SpecError: as `read_text`; it is empty, not TOML, or nested too deeply. All syntax errors
            and duplicate keys are reported.
    """
    return parse(read_text(path, named, budget=budget), str(path), budget=budget)


def read_text(
    path: Path, named: Callable[[], Place] | None = None, *, budget: Budget = DEFAULT_BUDGET
) -> str:
    """Return the text of a TOML file, which `read_document` reads.

    Raises:
        SpecError: it is missing, a directory, unreadable, too large, or not UTF-8.
    """
    name = str(path)
    try:
        # As `zoo.weights.file.is_file_name`, which no start has to import for this.
        if path.suffix.lower() == ".safetensors" and path.is_file():
            from zoo.files.hints import of_saved  # here: only a mistake needs it

            raise SpecError("this is not a TOML file", Place(name), of_saved(path))
        check_ends(path)
        with path.open("rb") as file:
            raw = file.read(budget.file_size + 1)
    except (OSError, ValueError) as error:
        message, hint = _why_unreadable(path, error)
        raise SpecError(message, named() if named else None, hint) from None
    if b"\0" in raw:  # which neither TOML nor any text in UTF-8 holds
        from zoo.files.formats import format_of  # here: only a mistake needs it

        if foreign := format_of(raw):
            raise SpecError(f"this is not TOML, but {foreign.name}", Place(name), foreign.help)
    if len(raw) > budget.file_size:
        message = f"larger than {budget.file_size:,} bytes"
        raise SpecError(message, Place(name), raising("file_size"))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in raw and not raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            message = "this is not TOML, but a binary file"
            raise SpecError(message, Place(name)) from None
        before = raw[: error.start].decode("utf-8")
        place = Document(name, {}, raw.decode("utf-8", "replace")).at_offset(len(before))
        message = f"not UTF-8: the byte 0x{raw[error.start]:02x}"
        raise SpecError(message, place, help="save the file as UTF-8") from None
    return text.removeprefix("\ufeff")


def _why_unreadable(path: Path, error: OSError | ValueError) -> tuple[str, str | None]:
    name = quoted(path, PATH)
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return f"{name} is a link that leads nowhere", None
        others = filter(os.path.isfile, path.parent.glob("*.toml"))
        near = nearest(path.name, (other.name for other in others))
        return f"{name} does not exist", f"did you mean `{near}`?" if near else None
    if isinstance(error, IsADirectoryError):
        from zoo.files.hints import inside  # here: only a mistake needs it

        return f"{name} is a directory", inside(path)
    if isinstance(error, OSError):
        return f"{name} cannot be read: {error.strerror}", None
    return f"{name} is not a path", None  # it holds a NUL


def parse(text: str, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Document:
    """Parse TOML text, called `name` in messages. Raises `SpecError` as `read_document`."""
    document = Document(name, {}, text, max_depth=budget.key_depth)
    if not text.strip():
        hint = "add `format = 1`; a spec also states a `name` and a `builder`"
        raise SpecError("the file is empty", document.at(1, 1), hint)
    if problem := too_deep(document, text):
        raise SpecError(problem)
    try:
        document.data = tomllib.loads(text)
    except ValueError:  # syntax errors are some, and integers of more digits than Python converts
        from zoo.toml.errors import read_around_errors

        read_around_errors(document)
    return document


def given(source: object, *, budget: Budget = DEFAULT_BUDGET) -> Document | None:
    """Return the document of plain data or of TOML text, which is a string of more than one line;
    None for a path or a name. Raises `SpecError` as `parse`."""
    if isinstance(source, Mapping):
        return from_data(dict(source), "<data>", budget=budget)
    if isinstance(source, str) and "\n" in source:
        return parse(source, "<text>", budget=budget)
    return None


def from_data(data: dict[str, Any], name: str, *, budget: Budget = DEFAULT_BUDGET) -> Document:
    """Make a document of data that was not read from text."""
    return Document(name, data, max_depth=budget.key_depth)


def from_weights(data: dict[str, Any], name: str, made_with: Mapping[str, str]) -> Document:
    """Make a document of the full form of a spec that was stored with weights, which were made with
    these plugins. Specs of earlier versions may state values that have no effect; these are
    accepted."""
    return Document(name, data, stored=True, made_with=made_with)
