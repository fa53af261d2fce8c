"""Names to plugins and models: layered `registry.toml` files.

An installed package takes part only when a registry names it (`include`). Only what is asked for is
imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from platformdirs import user_config_path

from zoo.budget import Budget
from zoo.catalog import MODEL_NAME, Catalog
from zoo.document import Document, KeyPath, read_document
from zoo.errors import (
    Place,
    PluginError,
    Problem,
    RegistryError,
    ZooError,
    did_you_mean,
    in_order,
    quoted,
)

if TYPE_CHECKING:
    from zoo.slots import Plugin
    from zoo.source import Source

FORMAT = 1
SLOTS = (
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
"""The names of the slots, which `zoo.slots` describes: a list of what there is needs no more."""
SOURCE = "source"
"""The group of the plugins that published models come from."""
FILE_NAME = "registry.toml"
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TARGET = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[\w./ -]+\.py):[A-Za-z_]\w*")


class Entry(NamedTuple):
    """One line of a registry: a plugin of a slot, or a named model."""

    group: str
    name: str
    target: str
    document: Document
    folder: Path

    @property
    def place(self) -> Place:
        return self.document.place((self.group, self.name))


@dataclass
class Registry:
    """All layers merged. `plugins[slot][name]`, `sources[kind]` and `models[name]` hold the
    entries, `families` the folders of family files, `catalog` the published models; `budget` is
    what the one who loads it allows."""

    plugins: dict[str, dict[str, Entry]] = field(
        default_factory=lambda: {slot: {} for slot in SLOTS}
    )
    sources: dict[str, Entry] = field(default_factory=dict[str, Entry])
    models: dict[str, Entry] = field(default_factory=dict[str, Entry])
    catalog: Catalog = field(default_factory=Catalog)
    defaults: dict[str, Entry] = field(default_factory=dict[str, Entry])
    families: list[Path] = field(default_factory=list[Path])
    budget: Budget = field(default_factory=Budget)
    _loaded: dict[tuple[str, str], type[Any]] = field(
        default_factory=dict["tuple[str, str]", "type[Any]"], repr=False
    )

    def plugin(self, slot: str, kind: str, at: Callable[[], Place] | None = None) -> type[Plugin]:
        """The description class registered as `kind` in `slot`, imported on first use.

        Raises:
            RegistryError: nothing has that name; the nearest name is told. `at` says where the
                name was written.
            PluginError: it cannot be imported, or is no description for that slot.
        """
        return self._class(slot, kind, self.plugins[slot], at)

    def source(self, kind: str, at: Callable[[], Place] | None = None) -> type[Source]:
        """The source registered as `kind`. Raises as `plugin`."""
        return self._class(SOURCE, kind, self.sources, at)

    def _class(
        self,
        group: str,
        name: str,
        entries: Mapping[str, Entry],
        at: Callable[[], Place] | None,
    ) -> type[Any]:
        if (group, name) not in self._loaded:
            if name not in entries:
                raise RegistryError(
                    Problem(
                        f"unknown {group} {quoted(name)}",
                        at() if at else None,
                        help=did_you_mean(name, entries),
                    )
                )
            self._loaded[group, name] = _load(entries[name], at)
        return self._loaded[group, name]

    def model(self, name: str) -> Entry:
        """The named model. Raises `RegistryError` with the nearest name."""
        if name not in self.models:
            raise RegistryError(
                Problem(f"there is no model {quoted(name)}", help=did_you_mean(name, self.models))
            )
        return self.models[name]


def _load(entry: Entry, at: Callable[[], Place] | None) -> type[Any]:
    from zoo.plugin_loading import PluginEntryPoint, PluginManager

    def named() -> tuple[tuple[str, Place], ...]:
        return (("named here", at()),) if at else ()

    try:
        plugin: Any = PluginManager(
            PluginEntryPoint.make(entry.group, entry.name, entry.target, entry.folder)
        ).driver
    except PluginError as error:
        shown = error.problems[0]
        message = f"{entry.group} {quoted(entry.name)} cannot be loaded: {shown.message}"
        problem = Problem(message, entry.place, shown.help, named())
        raise PluginError(problem) from error.__cause__
    interface = _interface(entry.group)
    if not (isinstance(plugin, type) and issubclass(plugin, interface)):
        message = f"{quoted(entry.target)} is no description for the slot `{entry.group}`"
        hint = f"make it a subclass of {interface.__module__}.{interface.__name__}"
        raise PluginError(Problem(message, entry.place, hint, named()))
    return plugin


def _interface(group: str) -> type[Any]:
    if group == SOURCE:
        from zoo.source import Source

        return Source
    from zoo.slots import SLOTS as INTERFACES

    return INTERFACES[group]


def shipped_registry() -> Path:
    """The registry that comes with the zoo: inside the package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / FILE_NAME
    return inside if inside.is_file() else package.parent / FILE_NAME


def find_registries(extra: Path | None = None) -> list[Path]:
    """The layers, first to last: shipped, the user's, the nearest one at or above the working
    directory, and `extra`. A nearest one that another copy of the zoo ships is no layer: it holds
    the names that this one has from its own."""
    try:
        here = Path.cwd()
    except OSError as error:
        raise RegistryError(f"the working directory cannot be read: {error.strerror}") from None
    candidates = (folder / FILE_NAME for folder in (here, *here.parents))
    nearest = next(filter(_is_file, candidates), None)
    local = [] if nearest is None or _is_of_a_checkout(nearest) else [nearest]
    layers = [
        shipped_registry(),
        *filter(_is_file, [user_config_path("zoo") / FILE_NAME]),
        *local,
        *([extra] if extra is not None else []),
    ]
    return list({path.resolve(): path for path in layers}.values())


def _is_of_a_checkout(registry: Path) -> bool:
    """Whether this file lies beside the sources of a zoo, as the shipped one of a checkout does."""
    return _is_file(registry.parent / "zoo" / Path(__file__).name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be searched
        return False


def load_registry(extra: Path | None = None, *, budget: Budget | None = None) -> Registry:
    """Read and merge the layers of `find_registries`.

    Args:
        extra: a further registry, over the others.
        budget: how large specs may be; the default limits unless given.

    Raises:
        RegistryError: every problem of every layer: a malformed line, a name defined twice.
    """
    return replace(read_layers(find_registries(extra)), budget=budget or Budget())


def read_layers(paths: Iterable[Path]) -> Registry:
    """Merge these registries, the later over the earlier, and no others.

    Raises:
        RegistryError: as `load_registry`.
    """
    layers = _Layers()
    for path in paths:
        layers.add(path)
    if layers.problems:
        raise RegistryError(in_order(layers.problems))
    return layers.registry


class _Layers:
    """Merges registries and collects the problems of all of them."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.problems: list[Problem] = []
        self.seen: set[Path] = set()

    def add(self, path: Path, included: Callable[[], Place] | None = None) -> None:
        resolved = path.resolve()
        if resolved in self.seen:
            return
        self.seen.add(resolved)
        here = Path.cwd()
        try:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            document = read_document(shown, included)
        except ZooError as error:
            self.problems += error.problems
            return
        self.problems += document.problems
        data = document.data
        if type(data.get("format")) is not int or data["format"] != FORMAT:
            place = document.place(("format",), value=True)
            self.report(f"a registry states `format = {FORMAT}`", place)
        known = {"format", "include", "families", "catalog", "defaults", "models", SOURCE, *SLOTS}
        self.refuse_unknown(data, known, document, ())
        # First, so that this registry's own lines go over those that it includes.
        include = data.get("include", [])
        for index, package in enumerate(include if isinstance(include, list) else [include]):
            self.include(document, package, index)
        folder = resolved.parent
        self.add_folder(document, folder, "families", self.registry.families)
        self.add_folder(document, folder, "catalog", self.registry.catalog.folders)
        for group in (*SLOTS, SOURCE, "models", "defaults"):
            table = data.get(group, {})
            if isinstance(table, dict):
                for name, value in cast("dict[str, Any]", table).items():
                    self.add_entry(document, folder, group, name, value)
            else:
                message = f"`{group}` maps names to {'specs' if group == 'models' else 'plugins'}"
                place = document.place((group,), value=True)
                self.report(message, place, f"write its lines below `[{group}]`")

    def report(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(message, place, hint))

    def refuse_unknown(
        self, data: Iterable[str], known: Iterable[str], document: Document, path: KeyPath
    ) -> None:
        for key in data:
            if key not in known:
                place = document.place((*path, key))
                self.report(f"unknown key {quoted(key)}", place, did_you_mean(key, known))

    def add_entry(
        self, document: Document, folder: Path, group: str, name: str, value: Any
    ) -> None:
        key, expected = _VALUES.get(group, _PLUGIN_VALUE)
        names = self.table(group)
        written: Mapping[str, Any] = value if isinstance(value, dict) else {key: value}
        self.refuse_unknown(written, (key, "override"), document, (group, name))
        if group == "defaults" and name not in SLOTS:
            place = document.place((group, name))
            self.report(f"there is no slot {quoted(name)}", place, did_you_mean(name, SLOTS))
            return
        pattern = MODEL_NAME if group == "models" else NAME
        if not pattern.fullmatch(name):
            signs = "letters, digits, `_`, `-` and `.`" if group == "models" else NAME_RULE
            place = document.place((group, name))
            message = f"{quoted(name)} is no name for a registry"
            self.report(message, place, f"names are made of {signs}")
            return
        override = written.get("override", False)
        if not isinstance(override, bool):
            place = document.place((group, name, "override"), value=True)
            self.report("`override` must be `true` or `false`", place)
        target = written.get(key)
        if not isinstance(target, str) or not _is_target(group, target):
            place = document.place((group, name, key), value=True)
            self.report(f"{_THING.get(group, group)} {quoted(name)} {expected}", place)
            return
        entry = Entry(group, name, target, document, folder)
        first = names.get(name)
        if first is None or override is True:
            names[name] = entry
            return
        self.problems.append(
            Problem(
                f"{_THING.get(group, group)} {quoted(name)} is registered twice",
                entry.place,
                help="rename one, or say that this one goes over the first: "
                f'{name} = {{ {key} = "{target}", override = true }}',
                related=(("first registered here", first.place),),
            )
        )

    def add_folder(self, document: Document, folder: Path, key: str, into: list[Path]) -> None:
        """Add the folder that a registry names under `key`, if it does."""
        name = document.data.get(key)
        if name is None:
            return
        wrong = ""
        if not isinstance(name, str) or not _is_inside(Path(name)):
            wrong = f"`{key}` must be the name of a folder beside or below this file"
        elif not (folder / name).is_dir():
            wrong = f"there is no folder {quoted(name)}"
        if wrong:
            self.report(wrong, document.place((key,), value=True))
        else:
            into.append(folder / name)

    def table(self, group: str) -> dict[str, Entry]:
        if group == "models":
            return self.registry.models
        if group == SOURCE:
            return self.registry.sources
        return self.registry.defaults if group == "defaults" else self.registry.plugins[group]

    def include(self, document: Document, package: object, index: int) -> None:
        """Add the registry that an installed package ships, without importing the package."""
        from importlib.util import find_spec

        def place() -> Place:
            return document.place(("include", index), value=True)

        if not isinstance(package, str) or not re.fullmatch(r"[A-Za-z_]\w*", package):
            message = "`include` must be the name of an installed package, or an array of names"
            self.report(message, place())
            return
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        folders = spec.submodule_search_locations if spec is not None else None
        if not folders:
            self.report(f"no package {quoted(package)} is installed", place())
            return
        path = Path(next(iter(folders))) / FILE_NAME
        if path.is_file():
            self.add(path, place)
        else:
            self.report(f"the package {quoted(package)} ships no {FILE_NAME}", place())


_PLUGIN_VALUE = "target", 'needs a target: "package.module:Class" or "plugins/file.py:Class"'
_VALUES = {
    "models": ("spec", "needs the name of a spec file in the registry's folder or below"),
    "defaults": ("kind", "must be the name of a plugin"),
}
_THING = {"models": "model", "defaults": "the default of"}
NAME_RULE = "lower-case letters, digits and `_`, and begin with a letter"


def _is_target(group: str, target: str) -> bool:
    if group == "defaults":
        return NAME.fullmatch(target) is not None
    if group == "models":
        return _is_inside(Path(target))
    where = target.rpartition(":")[0]
    is_sound = not where.endswith(".py") or _is_inside(Path(where))
    return is_sound and _TARGET.fullmatch(target) is not None


def _is_inside(path: Path) -> bool:
    """Whether a path leads to something below the folder that it is taken from."""
    return not path.is_absolute() and ".." not in path.parts and path != Path()
