"""The catalog of published models: folders, named by a registry, with one TOML file per model.

A full name is an architecture and a tag, which follows the last dot: `bert-base.uncased` is
described by `bert-base.uncased.toml`. Listing the models reads the folders but no file, so that it
is quick for many models. `names.toml` in a folder states the default tag of an architecture,
aliases, and deprecated names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from zoo.document import Document, read_document
from zoo.errors import Place, Problem, RegistryError, in_order
from zoo.wording import did_you_mean, quoted

FORMAT = 1
NAMES_FILE = "names.toml"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TABLES = ("default", "alias", "deprecated")


class _Entry(NamedTuple):
    """An entry of a `names.toml`: a name, and the full name that it means."""

    table: str
    name: str
    full: str
    document: Document

    @property
    def place(self) -> Place:
        return self.document.place((self.table, self.name))


class Catalog:
    """The published models of all registries; later folders take precedence over earlier ones.

    Names are looked up on use: no file is read and no folder listed before a name is requested.
    """

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def file(self, name: str) -> Path | None:
        """Return the file of a model, or None if there is no such name. `name` may also be an
        architecture alone, an alias or a deprecated name.

        Raises:
            RegistryError: two folders have a model of that name, its file is a link, a folder
                cannot be read, or `names.toml` says that the name means a model that there is not,
                or that of a model means another.
        """
        own, entry = self._own_file(name), self._entries.get(name)
        if entry is None:
            return own
        if own is not None:
            hint = f"take the line out, or rename the file of the model, {quoted(own)}"
            raise RegistryError(f"{quoted(name)} is a model itself", entry.place, hint)
        found = self._own_file(entry.full)
        if found is None:
            raise RegistryError(self._leads_nowhere(entry))
        return found

    def full_name(self, name: str) -> str:
        """Resolve an architecture alone, an alias or a deprecated name; return others unchanged."""
        return self._entries[name].full if name in self._entries else name

    def replacement(self, name: str) -> str | None:
        """Return the full name that replaces a deprecated name; None for any other name."""
        entry = self._entries.get(name)
        return entry.full if entry is not None and entry.table == "deprecated" else None

    def names(self) -> dict[str, Path]:
        """Map the full name of every model, sorted, to the folder of its file."""
        found = {name: folder for folder in self.folders for name in _listed(folder)}
        return dict(sorted(found.items()))

    def known(self) -> list[str]:
        """Return every name of every model: full names, defaults, aliases and deprecated names."""
        return [*self.names(), *self._entries]

    def _own_file(self, name: str) -> Path | None:
        if not MODEL_NAME.fullmatch(name):
            return None
        paths = [folder / f"{name}.toml" for folder in self.folders]
        found = [path for path in paths if path.name != NAMES_FILE and _is_file(path)]
        if len(found) > 1 and read_document(found[-1]).data.get("override") is not True:
            place = Place(str(found[-1]))
            hint = "rename one, or write `override = true` into the file that goes over the first"
            first = (("first registered here", Place(str(found[0]))),)
            raise RegistryError(
                Problem(f"model {quoted(name)} is registered twice", place, hint, first)
            )
        return _no_link(found[-1]) if found else None

    @cached_property
    def _entries(self) -> Mapping[str, _Entry]:
        """What each architecture, alias and deprecated name means."""
        paths = [folder / NAMES_FILE for folder in self.folders]
        documents = [read_document(_no_link(path)) for path in paths if _is_file(path)]
        return {entry.name: entry for document in documents for entry in _read_names(document)}

    def _leads_nowhere(self, entry: _Entry) -> Problem:
        """Return the problem that an entry of `names.toml` names no model."""
        names, full = self.names(), entry.full
        if full not in self._entries:
            message = f"there is no model {quoted(full)}"
            return Problem(message, entry.place, did_you_mean(full, names))
        hint = "names are not followed further: write the full name of a model"
        if self.full_name(full) in names:
            hint = f"{hint}, {quoted(self.full_name(full))}"
        message = f"{quoted(full)} is not the full name of a model, but another name for one"
        return Problem(message, entry.place, hint)


def _no_link(path: Path) -> Path:
    """Return `path`. Raises `RegistryError` for a symbolic link: it could point to any file, and
    error messages would show lines of that."""
    try:
        is_link = path.is_symlink()
    except OSError as error:
        raise _unreadable(path.parent, error) from None
    if is_link:
        message = "a model's file must not be a symbolic link"
        raise RegistryError(message, Place(str(path)), "put a copy of the file there")
    return path


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(path.parent, error) from None


def _unreadable(folder: Path, error: OSError) -> RegistryError:
    message = f"the folder of models cannot be read: {error.strerror}"
    return RegistryError(message, Place(str(folder)))


def _listed(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except OSError as error:
        raise _unreadable(folder, error) from None
    yield from filter(None, map(model_of, names))


def model_of(file_name: str) -> str | None:
    """Return the model that a file in a folder of models describes; None if it describes none."""
    stem, _, suffix = file_name.rpartition(".")
    if suffix == "toml" and file_name != NAMES_FILE and MODEL_NAME.fullmatch(stem):
        return stem
    return None


def _read_names(document: Document) -> Iterator[_Entry]:
    """Yield the entries of a `names.toml`."""
    problems = list(document.problems)
    entries: list[_Entry] = []
    written = document.data.get("format")
    if type(written) is not int or written != FORMAT:
        place = document.place(("format",), value=True)
        problems.append(Problem(f"the names of models state `format = {FORMAT}`", place))
    for table, values in document.data.items():
        if table == "format":
            continue
        if table not in _TABLES or not isinstance(values, dict):
            message = f"{quoted(table)} is not a table of names"
            problems.append(
                Problem(message, document.place((table,)), did_you_mean(table, _TABLES))
            )
            continue
        for name, value in values.items():
            if message := _wrong(table, name, value):
                problems.append(Problem(message, document.place((table, name), value=True)))
            else:
                full = f"{name}.{value}" if table == "default" else value
                entries.append(_Entry(table, name, full, document))
    if problems:
        raise RegistryError(in_order(problems))
    yield from entries


def _wrong(table: str, name: str, value: Any) -> str:
    if not MODEL_NAME.fullmatch(name):
        return f"{quoted(name)} is not a valid name for a model"
    pattern = _TAG if table == "default" else MODEL_NAME
    if isinstance(value, str) and pattern.fullmatch(value):
        return ""
    return f"`{name}` must be {'a tag' if table == 'default' else 'the name of a model'}"
