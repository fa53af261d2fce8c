"""Parse one `registry.toml` into its entries and the problems of its malformed lines.

Names that are registered twice are detected by `zoo.registry`, which merges several registries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zoo.document import Document, KeyPath, parse, read_text
from zoo.errors import Place, Problem
from zoo.registering.catalog import MODEL_NAME
from zoo.wording import did_you_mean, quoted

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

FILE_NAME = "registry.toml"
FORMAT = 1
SLOT_NAMES = (
    "builder",
    "block",
    "attention",
    "ffn",
    "norm",
    "position",
    "embedding",
    "head",
    "init",
)
"""The names of the slots, which `zoo.slots` describes; listing plugins needs only the names."""
SOURCE = "source"
"""The group of the plugins that load published models."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
NAME_RULE = "lower-case letters, digits and `_`, and begin with a letter"

_KEYS = {"format", "include", "families", "catalog", "defaults", "models", SOURCE, *SLOT_NAMES}
_TARGET = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[\w./ -]+\.py):[A-Za-z_]\w*")


class Entry(NamedTuple):
    """One line of a registry: a plugin of a slot or a source, a named model, a slot's default.

    Args:
        group: the table that the line stands in.
        name: the name that is registered.
        target: the class, spec file or kind that the name refers to.
        document: the registry.
        folder: the folder of the registry, to which paths are relative.
        override: whether it may replace an entry of the same name.
    """

    group: str
    name: str
    target: str
    document: Document
    folder: Path
    override: bool = False

    @property
    def in_file(self) -> bool:
        """Whether the target is a class in a file of the project, not in a package."""
        return self.target.rpartition(":")[0].endswith(".py")

    @property
    def thing(self) -> str:
        """What is registered, for a message."""
        return f"{_form(self.group).thing} {quoted(self.name)}"

    @property
    def key(self) -> str:
        """The key of the target if the line is a table."""
        return _form(self.group).key

    @property
    def place(self) -> Place:
        return self.document.place((self.group, self.name))


class Included(NamedTuple):
    """The registry of a package that another one includes; `named` returns the place that does."""

    path: Path
    named: Callable[[], Place]


class Missing(NamedTuple):
    """A package that a registry includes, and that is not installed. `document` is the registry,
    and `path` leads to the name there."""

    package: str
    document: Document
    path: KeyPath

    @property
    def place(self) -> Place:
        return self.document.place(self.path, value=True)


class RegistryFile:
    """The content of a registry: its `entries`, the registries that it includes, the packages that
    are `missing` for that, and the folders of families and published models, if any. `problems`
    lists its malformed lines."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.problems = list(document.problems)
        self.missing: list[Missing] = []
        self._document = document
        self._folder = folder
        self._check_keys()
        self.included = list(self._read_included())
        self.families = self._read_folder("families")
        self.catalog = self._read_folder("catalog")
        self.entries = list(self._read_entries())

    def _report(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(message, place, hint))

    def _check_keys(self) -> None:
        written = self._document.data.get("format")
        if type(written) is not int or written != FORMAT:
            place = self._document.place(("format",), value=True)
            self._report(f"a registry states `format = {FORMAT}`", place)
        self._refuse_unknown(self._document.data, _KEYS, ())

    def _refuse_unknown(self, data: Iterable[str], known: Collection[str], path: KeyPath) -> None:
        for key in data:
            if key not in known:
                place = self._document.place((*path, key))
                self._report(f"unknown key {quoted(key)}", place, did_you_mean(key, known))

    def _read_included(self) -> Iterator[Included]:
        """Yield the included registries of installed packages, without importing the packages, and
        add those that are not installed to `missing`."""
        packages = self._document.data.get("include", [])
        for index, package in enumerate(packages if isinstance(packages, list) else [packages]):

            def place(index: int = index) -> Place:
                return self._document.place(("include", index), value=True)

            named = isinstance(package, str) and re.fullmatch(r"[A-Za-z_]\w*", package)
            spec = _module_spec(package) if named else None
            hint = _as_imported(package) if spec is None else None
            if hint or not named:
                message = "`include` must be the name of an installed package, or an array of names"
                self._report(message, place(), hint)
            elif spec is None:
                self.missing.append(Missing(package, self._document, ("include", index)))
            elif not (folders := spec.submodule_search_locations):
                self._report(f"{quoted(package)} is a module, and no package", place())
            elif not ((folder := Path(next(iter(folders)))) / FILE_NAME).is_file():
                hint = f"it is in {folder}: does its wheel leave the file out?"
                self._report(f"the package {quoted(package)} ships no {FILE_NAME}", place(), hint)
            else:
                yield Included(folder / FILE_NAME, place)

    def _read_folder(self, key: str) -> Path | None:
        """Return the folder that the registry names under `key`; None if it names no valid one."""
        name = self._document.data.get(key)
        if name is None:
            return None
        if not isinstance(name, str) or not _is_inside(Path(name)):
            wrong = f"`{key}` must be the name of a folder beside or below this file"
        elif not os.path.isdir(self._folder / name):  # Path.is_dir raises for a name too long
            wrong = f"there is no folder {quoted(name)}"
        else:
            return self._folder / name
        self._report(wrong, self._document.place((key,), value=True))
        return None

    def _read_entries(self) -> Iterator[Entry]:
        for group in (*SLOT_NAMES, SOURCE, "models", "defaults"):
            table = self._document.data.get(group, {})
            if isinstance(table, dict):
                lines = cast("dict[str, Any]", table).items()
                entries = (self._read_entry(group, name, value) for name, value in lines)
                yield from filter(None, entries)
            else:
                message = f"`{group}` maps names to {'specs' if group == 'models' else 'plugins'}"
                place = self._document.place((group,), value=True)
                self._report(message, place, f"write its lines below `[{group}]`")

    def _read_entry(self, group: str, name: str, value: Any) -> Entry | None:
        """Read one line: a target, or a table with the target and `override`."""
        form, path = _form(group), (group, name)
        written: Mapping[str, Any] = value if isinstance(value, dict) else {form.key: value}
        self._refuse_unknown(written, (form.key, "override"), path)
        if group == "defaults" and name not in SLOT_NAMES:
            hint = did_you_mean(name, SLOT_NAMES)
            self._report(f"there is no slot {quoted(name)}", self._document.place(path), hint)
            return None
        if not form.name.fullmatch(name):
            message = f"{quoted(name)} is not a valid name in a registry"
            hint = f"names are made of {form.name_rule}"
            self._report(message, self._document.place(path), hint)
            return None
        override = written.get("override", False)
        if not isinstance(override, bool):
            place = self._document.place((*path, "override"), value=True)
            self._report("`override` must be `true` or `false`", place)
        target = written.get(form.key)
        if not isinstance(target, str) or not form.is_target(target):
            place = self._document.place((*path, form.key), value=True)
            self._report(f"{form.thing} {quoted(name)} {form.expected}", place)
            return None
        return Entry(group, name, target, self._document, self._folder, override is True)


def read_registry_file(path: Path, named: Callable[[], Place] | None) -> RegistryFile:
    """Read a registry; `named` returns the place in another registry that includes it.

    Raises:
        SpecError: it cannot be read, or is not TOML.
    """
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    document = _parsed(read_text(shown, named), str(shown))
    return RegistryFile(document, path.resolve().parent)


@lru_cache(maxsize=8)
def _parsed(text: str, name: str) -> Document:
    """Parse the text of a registry, which is read for each model, and seldom another one."""
    return parse(text, name)


class _Form(NamedTuple):
    """The format of the lines of a group.

    Args:
        thing: what they register, for a message.
        key: the key of the target if a line is a table.
        expected: what the target must be, for a message.
        is_target: whether a target is valid.
        name: the pattern of names.
        name_rule: the same in words.
    """

    thing: str
    key: str
    expected: str
    is_target: Callable[[str], bool]
    name: re.Pattern[str] = NAME
    name_rule: str = NAME_RULE


def _form(group: str) -> _Form:
    return _FORMS.get(group) or _Form(
        group,
        "target",
        'needs a target: "package.module:Class", or "plugins/file.py:Class" below its own folder',
        _is_plugin,
    )


def _is_plugin(target: str) -> bool:
    where = target.rpartition(":")[0]
    is_sound = not where.endswith(".py") or _is_inside(Path(where))
    return is_sound and _TARGET.fullmatch(target) is not None


def _is_inside(path: Path) -> bool:
    """Return whether a relative path stays below the folder that it starts from."""
    return bool(path.parts) and ".." not in path.parts and not path.is_absolute()


_FORMS = {
    "models": _Form(
        "model",
        "spec",
        "needs the name of a spec file in the registry's folder or below",
        lambda target: _is_inside(Path(target)),
        MODEL_NAME,
        "letters, digits, `_`, `-` and `.`",
    ),
    "defaults": _Form(
        "the default of",
        "kind",
        "must be the name of a plugin",
        lambda target: NAME.fullmatch(target) is not None,
    ),
}


def _as_imported(name: object) -> str | None:
    """Return a hint for the name that a package is installed by, where it is imported by another;
    None for other values."""
    from importlib.metadata import PackageNotFoundError, distribution

    imported = str(name).replace("-", "_")
    if imported != name and imported.isidentifier() and _module_spec(imported) is not None:
        return f"as it is imported: {quoted(imported)}"
    try:
        files = distribution(str(name)).files or ()
    except (PackageNotFoundError, ValueError):
        return None
    found = [file.parts[0] for file in files if file.parts[1:] == (FILE_NAME,)]
    return f"as it is imported: {quoted(found[0])}" if found else None


def _module_spec(package: str) -> ModuleSpec | None:
    """Return where an installed package or module is; None if it is not installed."""
    from importlib.util import find_spec

    try:
        return find_spec(package)
    except (ImportError, ValueError):
        return None
