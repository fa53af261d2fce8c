"""Names to plugins and models: layered `registry.toml` files, plugins loaded through stevedore.

Discovery is stevedore's, fed by `registry.toml` instead of packaging metadata: an installed
package takes part only when a registry names it (`include`). Only what is asked for is imported.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from stevedore.driver import DriverManager

from zoo.document import Document, read_document
from zoo.errors import Place, PluginError, Problem, RegistryError, ZooError, did_you_mean, quoted
from zoo.plugin_errors import describe_failure
from zoo.slots import SLOTS, Plugin

FORMAT = 1
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}", re.IGNORECASE)
_TARGET = re.compile(r"(?P<where>[\w./-]+):(?P<attr>[A-Za-z_]\w*)")


class PluginEntryPoint(EntryPoint):
    """An entry point made from a registry line; `folder` is the registry's own."""

    folder: Path

    @classmethod
    def make(cls, slot: str, name: str, target: str, folder: Path) -> PluginEntryPoint:
        point = cls(name, target, slot)
        # EntryPoint refuses attributes after construction; its own fields are set the same way.
        vars(point)["folder"] = folder
        return point

    def load(self) -> Any:
        """Import the target: `package.module:Name`, or `path/to/file.py:Name` in `folder`.

        Raises:
            PluginError: whatever went wrong, `SystemExit` and `AssertionError` included, which
                stevedore would let through.
        """
        where, attribute = self.value.rsplit(":", 1)
        try:
            module = self._import_file(where) if where.endswith(".py") else _import_module(where)
            return getattr(module, attribute)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(
                describe_failure(f"plugin {self.group}.{self.name} = {self.value!r}", error)
            ) from error

    def _import_file(self, relative: str) -> Any:
        path = (self.folder / relative).resolve()
        # Named by its whole path: it can shadow no other module, and is imported once.
        name = "zoo_plugin_file_" + re.sub(r"\W", "_", str(path))
        if name not in sys.modules:
            spec = spec_from_file_location(name, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise FileNotFoundError(f"there is no file {path}")
            module = module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def _import_module(name: str) -> Any:
    from importlib import import_module

    return import_module(name)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a registry: a plugin of a slot, or a named model."""

    group: str
    name: str
    target: str
    document: Document
    folder: Path

    @property
    def place(self) -> Place:
        return self.document.place((self.group, self.name))


class _Manager(DriverManager[type[Plugin]]):
    """stevedore's driver manager over one registry entry."""

    def __init__(self, point: PluginEntryPoint) -> None:
        self._point = point
        super().__init__(point.group, point.name, warn_on_missing_entrypoint=False)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._point]


@dataclass
class Registry:
    """All layers merged. `plugins[slot][name]` and `models[name]` hold the entries."""

    plugins: dict[str, dict[str, Entry]] = field(
        default_factory=lambda: {slot: {} for slot in SLOTS}
    )
    models: dict[str, Entry] = field(default_factory=dict[str, Entry])
    defaults: dict[str, Entry] = field(default_factory=dict[str, Entry])
    _loaded: dict[tuple[str, str], type[Plugin]] = field(
        default_factory=dict[tuple[str, str], type[Plugin]], repr=False
    )

    def plugin(
        self, slot: str, kind: str, at: Callable[[], Place] | None = None
    ) -> type[Plugin]:
        """The description class registered as `kind` in `slot`, imported on first use.

        Raises:
            RegistryError: nothing has that name; the nearest name is told. `at` says where the
                name was written.
            PluginError: it cannot be imported, or is no description for that slot.
        """
        if (slot, kind) not in self._loaded:
            entry = self.plugins[slot].get(kind)
            if entry is None:
                raise RegistryError(
                    Problem(
                        f"unknown {slot} {quoted(kind)}",
                        at() if at else None,
                        help=did_you_mean(kind, self.plugins[slot]),
                    )
                )
            self._loaded[slot, kind] = _load(entry)
        return self._loaded[slot, kind]

    def model(self, name: str) -> Entry:
        """The named model. Raises `RegistryError` with the nearest name."""
        if name not in self.models:
            raise RegistryError(
                Problem(f"there is no model {quoted(name)}", help=did_you_mean(name, self.models))
            )
        return self.models[name]


def _load(entry: Entry) -> type[Plugin]:
    point = PluginEntryPoint.make(entry.group, entry.name, entry.target, entry.folder)
    try:
        plugin: Any = _Manager(point).driver
    except PluginError as error:
        shown = error.problems[0]
        raise PluginError(Problem(shown.message, entry.place, shown.help)) from error.__cause__
    interface = SLOTS[entry.group]
    if not (isinstance(plugin, type) and issubclass(plugin, interface)):
        raise PluginError(
            Problem(
                f"{quoted(entry.target)} is not a description for the slot `{entry.group}`",
                entry.place,
                help=f"make it a subclass of zoo.slots.{interface.__name__}",
            )
        )
    return plugin


def shipped_registry() -> Path:
    """The registry that comes with the zoo: inside the package, or beside it in a checkout."""
    package = Path(str(importlib.resources.files("zoo")))
    inside = package / "registry.toml"
    return inside if inside.is_file() else package.parent / "registry.toml"


def find_registries(extra: Path | None = None) -> list[Path]:
    """The layers, first to last: shipped, the user's, the nearest one at or above the working
    directory, and `extra`."""
    from platformdirs import user_config_path

    layers = [shipped_registry()]
    user = user_config_path("zoo") / "registry.toml"
    if user.is_file():
        layers.append(user)
    here = Path.cwd()
    nearest = (folder / "registry.toml" for folder in (here, *here.parents))
    layers += [path for path in nearest if path.is_file()][:1]
    if extra is not None:
        layers.append(extra)
    unique = {path.resolve(): path for path in layers}
    return list(unique.values())


def load_registry(extra: Path | None = None) -> Registry:
    """Read and merge the layers of `find_registries`.

    Raises:
        ZooError: every problem of every layer: a malformed line, a name defined twice.
    """
    registry = Registry()
    problems: list[Problem] = []
    for path in find_registries(extra):
        problems += _add_layer(registry, path)
    if problems:
        raise RegistryError(problems)
    return registry


def _add_layer(registry: Registry, path: Path) -> list[Problem]:
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    try:
        document = read_document(shown)
    except ZooError as error:
        return list(error.problems)
    data = document.data
    problems: list[Problem] = []
    if data.get("format") != FORMAT:
        message = f"a registry starts with `format = {FORMAT}`"
        problems.append(Problem(message, document.place(("format",), value=True)))
    known = {"format", "include", "defaults", "models", *SLOTS}
    for key in data:
        if key not in known:
            problems.append(
                Problem(
                    f"unknown key {quoted(key)}",
                    document.place((key,)),
                    help=did_you_mean(key, known),
                )
            )
    for group in (*SLOTS, "models", "defaults"):
        table = data.get(group, {})
        if not isinstance(table, dict):
            message = f"`{group}` maps names to plugins: write it as a table"
            problems.append(Problem(message, document.place((group,), value=True)))
            continue
        for name, value in table.items():  # pyright: ignore[reportUnknownVariableType]
            problems += _add_entry(registry, document, path.resolve().parent, group, str(name), value)  # pyright: ignore[reportUnknownArgumentType]
    for package in data.get("include", []):
        problems += _include(registry, document, package)
    return problems


def _add_entry(
    registry: Registry, document: Document, folder: Path, group: str, name: str, value: Any
) -> list[Problem]:
    written: Mapping[str, Any] = value if isinstance(value, dict) else {_key(group): value}
    allowed = {_key(group), "override"}
    if unknown := set(written) - allowed:
        key = sorted(unknown)[0]
        place = document.place((group, name))
        return [Problem(f"unknown key {quoted(key)}", place, help=did_you_mean(key, allowed))]
    target = written.get(_key(group))
    pattern = _MODEL_NAME if group == "models" else _NAME
    if not pattern.fullmatch(name):
        place = document.place((group, name))
        return [Problem(f"{quoted(name)} is not a name", place, help=f"names match {pattern.pattern}")]
    if not isinstance(target, str) or not _target_is_well_formed(group, target):
        return [
            Problem(
                f"{group} {quoted(name)} needs {_EXPECTED[_key(group)]}",
                document.place((group, name), value=True),
            )
        ]
    where = _table(registry, group)
    entry = Entry(group, name, target, document, folder)
    first = where.get(name)
    if first is not None and written.get("override") is not True:
        return [
            Problem(
                f"{group} {quoted(name)} is registered twice",
                entry.place,
                help="rename one, or say `override = true` in the later",
                related=(("first registered here", first.place),),
            )
        ]
    where[name] = entry
    return []


_EXPECTED = {
    "target": 'a target: "package.module:Class" or "plugins/file.py:Class"',
    "spec": "the file name of a spec in the registry's folder or below",
    "kind": "the kind that fills the slot when a spec names none",
}


def _key(group: str) -> str:
    return {"models": "spec", "defaults": "kind"}.get(group, "target")


def _table(registry: Registry, group: str) -> dict[str, Entry]:
    if group == "models":
        return registry.models
    return registry.defaults if group == "defaults" else registry.plugins[group]


def _target_is_well_formed(group: str, target: str) -> bool:
    if group == "defaults":
        return _NAME.fullmatch(target) is not None
    path = target.rpartition(":")[0] if group != "models" else target
    inside = not Path(path).is_absolute() and ".." not in Path(path).parts
    return inside and (group == "models" or _TARGET.fullmatch(target) is not None)


def _include(registry: Registry, document: Document, package: object) -> list[Problem]:
    """Add the registry that an installed package ships as `registry.toml`, without importing it."""
    from importlib.util import find_spec

    place = document.place(("include",), value=True)
    if not isinstance(package, str) or not re.fullmatch(r"[A-Za-z_]\w*", package):
        return [Problem(f"{package!r} is not the name of a package", place)]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return [Problem(f"the package {quoted(package)} is not installed", place)]
    path = Path(next(iter(spec.submodule_search_locations))) / "registry.toml"
    if not path.is_file():
        return [Problem(f"the package {quoted(package)} ships no registry.toml", place)]
    return _add_layer(registry, path)
