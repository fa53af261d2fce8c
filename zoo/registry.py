"""Maps names to plugins and models: layered `registry.toml` files.

An installed package is used only if a registry names it (`include`). Plugins are imported on first
use.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_config_path

from zoo.arguments import check_path
from zoo.budget import Budget
from zoo.errors import Place, PluginError, Problem, RegistryError, ZooError, in_order
from zoo.registering.catalog import Catalog
from zoo.registering.registry_file import (
    FILE_NAME,
    SLOT_NAMES,
    SOURCE,
    Entry,
    Missing,
    RegistryFile,
    read_registry_file,
)
from zoo.wording import counted, did_you_mean, quoted

if TYPE_CHECKING:
    from zoo.slots import Plugin
    from zoo.source import Source


class MissingPackageWarning(UserWarning):
    """A registry includes a package that is not installed: its names are not known here."""


@dataclass
class Registry:
    """All layers merged. `plugins[slot][name]`, `sources[kind]` and `models[name]` hold the
    entries, `families` the folders of family files, `catalog` the published models; `missing` the
    packages that are included and not installed. `budget` limits the size of specs."""

    plugins: dict[str, dict[str, Entry]] = field(
        default_factory=lambda: {slot: {} for slot in SLOT_NAMES}
    )
    sources: dict[str, Entry] = field(default_factory=dict[str, Entry])
    models: dict[str, Entry] = field(default_factory=dict[str, Entry])
    catalog: Catalog = field(default_factory=Catalog)
    defaults: dict[str, Entry] = field(default_factory=dict[str, Entry])
    families: list[Path] = field(default_factory=list[Path])
    missing: list[Missing] = field(default_factory=list[Missing])
    budget: Budget = field(default_factory=Budget)
    _loaded: dict[tuple[str, str], type[Any]] = field(
        default_factory=dict["tuple[str, str]", "type[Any]"], repr=False
    )

    def __repr__(self) -> str:
        components = counted(len(self.components()), "component")
        return f"<Registry of {components} and {counted(len(self.models), 'spec')}>"

    def plugin(self, slot: str, kind: str, at: Callable[[], Place] | None = None) -> type[Plugin]:
        """Return the description class registered as `kind` in `slot`, imported on first use.

        Raises:
            RegistryError: the name is unknown; the nearest one is suggested. `at` is the place
                where the name was written.
            PluginError: it cannot be imported, or is not a description for that slot.
        """
        return self._class(slot, kind, at)

    def loaded(self, slot: str, kind: str) -> type[Plugin] | None:
        """Return the class of a plugin if it was used before; None otherwise."""
        return self._loaded.get((slot, kind))

    def source(self, kind: str, at: Callable[[], Place] | None = None) -> type[Source]:
        """Return the source registered as `kind`. Raises as `plugin`."""
        return self._class(SOURCE, kind, at)

    def _class(self, group: str, name: str, at: Callable[[], Place] | None) -> type[Any]:
        if (group, name) not in self._loaded:
            entries = self.entries(group)
            if name not in entries:
                message = f"unknown {group} {quoted(name)}"
                others = [slot for slot in self.plugins if name in self.plugins[slot]]
                hint = did_you_mean(name, entries)
                if group != SOURCE and others:
                    hint = f"{quoted(name)} is registered as {others[0]}, not as {group}"
                where = at() if at else None
                raise RegistryError(Problem(message, where, hint, self.perhaps_missing()))
            self._loaded[group, name] = _load(entries[name], at)
        return self._loaded[group, name]

    def entries(self, group: str) -> dict[str, Entry]:
        """Return the entries of a slot, of `source`, `models` or `defaults`, by name."""
        others = {SOURCE: self.sources, "models": self.models, "defaults": self.defaults}
        return others[group] if group in others else self.plugins[group]

    def components(self) -> list[str]:
        """Return the components, as `ffn.mlp`, by slot."""
        return [f"{slot}.{kind}" for slot, kinds in self.plugins.items() for kind in kinds]

    def perhaps_missing(self) -> tuple[tuple[str, Place], ...]:
        """Return the notes of a problem about an unknown name: one for each missing package, which
        may register it."""
        return tuple(
            (f"the package {quoted(one.package)} is not installed, and may register it", one.place)
            for one in self.missing
        )


def _load(entry: Entry, at: Callable[[], Place] | None) -> type[Any]:
    from zoo.registering.plugin_errors import plugin_code
    from zoo.registering.plugin_loading import PluginEntryPoint, PluginManager

    def named() -> tuple[tuple[str, Place], ...]:
        return (("named here", at()),) if at else ()

    try:
        plugin: Any = PluginManager(
            PluginEntryPoint.make(entry.group, entry.name, entry.target, entry.folder)
        ).driver
        if entry.group != SOURCE:
            from zoo.component import Component

            if isinstance(plugin, type) and issubclass(plugin, Component):
                with plugin_code(f"reading the fields of {quoted(entry.target)}"):
                    plugin.complete_fields()
    except PluginError as error:
        shown = error.problems[0]
        message = f"{entry.group} {quoted(entry.name)} cannot be loaded: {shown.message}"
        problem = Problem(message, entry.place, shown.help, named())
        raise PluginError(problem) from error.__cause__
    interface = _interface(entry.group)
    if not (isinstance(plugin, type) and issubclass(plugin, interface)) or plugin is interface:
        message = f"{quoted(entry.target)} is not a description for the slot `{entry.group}`"
        hint = f"make it a subclass of {interface.__module__}.{interface.__name__}"
        if isinstance(plugin, interface):
            hint = f"name the class, `{type(plugin).__name__}`, and not an instance of it"
        raise PluginError(Problem(message, entry.place, hint, named()))
    if entry.group != SOURCE and (over := _field_over(plugin, interface)):
        message = f"{entry.group} {quoted(entry.name)} cannot be loaded: {over}"
        hint = "leave it out, or choose another name"
        raise PluginError(Problem(message, entry.place, hint, named()))
    return plugin


def _field_over(plugin: type[Plugin], slot: type[Plugin]) -> str | None:
    """Return which field of its slot a description redefines; its parent relies on those. A class
    variable instead, which gives all of a kind one value, is what the parent finds too."""
    from zoo.component import GIVEN, fields_of

    for name, mark in fields_of(slot).items():
        own, stated = plugin.model_fields.get(name), slot.model_fields[name]
        if own is None and mark is not GIVEN:
            continue
        same = own is not None and own.annotation == stated.annotation
        if not same or fields_of(plugin)[name] is not mark:
            what = "a dimension that the parent gives" if mark is GIVEN else "a field"
            return f"`{name}` of {plugin.__name__} goes over {what}, which {slot.__name__} states"
    return None


def _interface(group: str) -> type[Any]:
    if group == SOURCE:
        from zoo.source import Source

        return Source
    from zoo.slots import SLOTS

    return SLOTS[group]


def shipped_registry() -> Path:
    """Return the shipped registry: inside the package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / FILE_NAME
    return inside if inside.is_file() else package.parent / FILE_NAME


def find_registries(extra: str | Path | None = None) -> list[Path]:
    """Return the registry files, first to last: the shipped one, the user's, the nearest one at or
    above the working directory, and `extra`. The shipped registry of another copy of the zoo is
    ignored, since it holds the same names as that of this one.

    Raises:
        RegistryError: there is no working directory, or it cannot be read.
    """
    try:
        here = Path.cwd()
    except OSError as error:
        raise RegistryError(f"the working directory cannot be read: {error.strerror}") from None
    nearest = _nearest(here)
    local = [] if nearest is None or _is_of_a_checkout(nearest) else [nearest]
    layers = [
        shipped_registry(),
        *filter(os.path.isfile, _of_user()),
        *local,
        *([] if extra is None else [check_path(extra, "a registry is the path of its file")]),
    ]
    return list({os.path.realpath(path): path for path in layers}.values())


def _of_user() -> list[Path]:
    """Return the path of the user's registry, in a list; an empty one for a user without a home
    folder, as in a container."""
    try:
        return [user_config_path("zoo") / FILE_NAME]
    except RuntimeError:
        return []


def _nearest(folder: Path) -> Path | None:
    """Return the registry file in a folder, or in the nearest enclosing folder that has one."""
    candidates = (around / FILE_NAME for around in (folder, *folder.parents))
    return next(filter(os.path.isfile, candidates), None)


def _is_of_a_checkout(registry: Path) -> bool:
    """Return whether a registry lies beside the sources of a zoo, as in a checkout."""
    return os.path.isfile(registry.parent / "zoo" / Path(__file__).name)


def registered_near(file: str, group: str, name: str) -> str | None:
    """Return a help text for an unknown name that a file states: if the registry at or above this
    file has it, which then is in a project that the zoo was not run from; or if that project has a
    plugin file of this name."""
    found = _nearest(Path(file).resolve().parent)
    try:
        if found is None:
            return None
        if name in read_layers([found]).entries(group):
            passed = "pass it as `--registry`, in Python as `registry=zoo.load_registry(...)`"
            return f"{quoted(found)} registers it: work in its folder, or {passed}"
    except ZooError:
        return None
    return _without_line(found, group, name)


def _without_line(registry: Path, group: str, name: str) -> str | None:
    """Return a help text if a project has a plugin file of this name, which its registry does not
    name."""
    target = f"plugins/{name}.py"
    try:
        text = (registry.parent / target).read_text("utf-8") if name.isidentifier() else ""
    except (OSError, ValueError):
        return None
    if not (classes := re.findall(r"^class (\w+)", text, re.MULTILINE)):
        return None
    line = f'`{name} = "{target}:{classes[0]}"` below `[{group}]`'
    which = ", with the class that describes it" if len(classes) > 1 else ""
    return f"{quoted(target)} is there, but {quoted(registry)} does not name it: add {line}{which}"


def in_force(registry: Registry | None) -> Registry:
    """Return the registry that a function of the library is given, or else the one around the
    working directory.

    Raises:
        TypeError: it is no registry, as the path of one.
        RegistryError: as `load_registry`.
    """
    if registry is None:
        return load_registry()
    if not isinstance(registry, Registry):
        given = type(registry).__name__
        raise TypeError(f"`registry` is what `zoo.load_registry(path)` returns, not a {given}")
    return registry


def load_registry(extra: str | Path | None = None, *, budget: Budget | None = None) -> Registry:
    """Read and merge the registries, later ones with priority: the shipped one, the user's, the
    nearest `registry.toml` at or above the working directory, and `extra`. Each package that they
    include and that is not installed gives a `MissingPackageWarning`: only who uses its names needs
    it.

    Args:
        extra: a further registry, with priority over the others.
        budget: limits of the size of specs; the default limits unless given.

    Raises:
        RegistryError: every problem of every layer: a malformed line, a name defined twice.
    """
    registry = replace(read_layers(find_registries(extra)), budget=budget or Budget())
    for one in registry.missing:
        message = (
            f"{one.place}: the package {quoted(one.package)} is not installed, and what it "
            f"registers is not known here: install it for this Python, {sys.executable}"
        )
        warnings.warn(message, MissingPackageWarning, stacklevel=2)
    return registry


def read_layers(paths: Iterable[Path]) -> Registry:
    """Merge only these registries; later ones have priority.

    Raises:
        RegistryError: as `load_registry`.
    """
    layers = _Layers()
    for path in paths:
        layers.add(path)
    if problems := [*layers.problems, *layers.twice.values()]:
        raise RegistryError(in_order(problems))
    return layers.registry


class _Layers:
    """Merges registries and collects the problems of all of them. `twice` are those of names that
    two registries have, which a later one settles if it goes over both."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.problems: list[Problem] = []
        self.twice: dict[tuple[str, str], Problem] = {}
        self._seen: set[str] = set()

    def add(self, path: Path, included: Callable[[], Place] | None = None) -> None:
        """Merge a registry over the earlier ones; `included` is where one of them includes it."""
        real = os.path.realpath(path)
        if real in self._seen:
            return
        self._seen.add(real)
        try:
            file = read_registry_file(path, included)
        except ZooError as error:
            self.problems += error.problems
            return
        self.problems += file.problems
        self.registry.missing += file.missing
        # First, so that this registry's own entries have priority over included ones.
        for other in file.included:
            self.add(other.path, other.named)
        self._add_lines(file, included)

    def _add_lines(self, file: RegistryFile, included: Callable[[], Place] | None) -> None:
        if file.families is not None:
            self.registry.families.append(file.families)
        if file.catalog is not None:
            self.registry.catalog.folders.append(file.catalog)
        for entry in file.entries:
            names, key = self.registry.entries(entry.group), (entry.group, entry.name)
            first = names.get(entry.name)
            if first is None or entry.override:
                names[entry.name] = entry
                self.twice.pop(key, None)
            else:
                self.twice.setdefault(key, _registered_twice(entry, first, included))


def _registered_twice(entry: Entry, first: Entry, included: Callable[[], Place] | None) -> Problem:
    """Return the problem that the name of an entry is registered already. If the registry of the
    entry is that of a package, who includes it decides, and not who wrote it."""
    target, decide = entry.target, "say that this one goes over the first"
    if included is not None:
        decide = f"decide in {quoted(included().file)}, below `[{entry.group}]`"
        if entry.in_file:
            target = _in_package(entry)
    over = f'{entry.name} = {{ {entry.key} = "{target}", override = true }}'
    return Problem(
        f"{entry.thing} is registered twice",
        entry.place,
        help=f"rename one, or {decide}: {over}",
        related=(("first registered here", first.place),),
    )


def _in_package(entry: Entry) -> str:
    """Return the target of an entry of a package as one names it elsewhere: `package.module:Class`
    for `module.py:Class`."""
    file, _, cls = entry.target.rpartition(":")
    module = Path(entry.folder.name, file).with_suffix("")
    return f"{'.'.join(module.parts)}:{cls}"
