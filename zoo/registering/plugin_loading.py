"""Load the class that a registry line names, through stevedore.

stevedore finds plugins in packaging metadata; here its manager is given a single entry point, made
from the registry line. The entry points that installed packages declare are never read, nor is
stevedore's on-disk cache of them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from stevedore.driver import DriverManager

from zoo.errors import PluginError
from zoo.registering.plugin_errors import plugin_code
from zoo.wording import did_you_mean, nearest, quoted

SHA256 = "__sha256__"
"""The attribute of an imported file's module that holds the hexadecimal SHA-256 of the file."""

_importing = RLock()
"""Held while a plugin is imported, so that no other thread sees a file's partially initialized
module, and one alone redirects stdout."""


class PluginEntryPoint(EntryPoint):
    """An entry point made from a registry line; `folder` is that of the registry."""

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
            PluginError: the import failed for any reason, `SystemExit` and `AssertionError`
                included, which stevedore would let through.
        """
        where, _, attribute = self.value.rpartition(":")
        # What a plugin prints must not get into the output of a command.
        with (
            plugin_code(f"importing {quoted(self.value)}"),
            _importing,
            redirect_stdout(sys.stderr),
        ):
            module = self._import_file(where) if where.endswith(".py") else _import_module(where)
            if not hasattr(module, attribute):
                own = [
                    name
                    for name, value in vars(module).items()
                    if isinstance(value, type) and value.__module__.startswith(module.__name__)
                ]
                message = f"{quoted(where)} has no {quoted(attribute)}"
                hint = did_you_mean(attribute, own) if own else "it defines no class"
                raise PluginError(message, help=hint)
            return getattr(module, attribute)

    def _import_file(self, relative: str) -> ModuleType:
        path = (self.folder / relative).resolve()
        if not os.path.isfile(path):  # Path.is_file raises for a name too long
            near = nearest(path.name, (other.name for other in path.parent.glob("*.py")))
            for other in (*self.folder.glob("*.py"), *self.folder.glob("*/*.py")):
                if other.name == path.name:  # in another folder than it is said to be
                    near = other.relative_to(self.folder).as_posix()
            hint = f"did you mean `{near}`?" if near else None
            raise PluginError(f"there is no file {quoted(path)}", help=hint)
        # Named after its full path: shadows no other module, and is imported once.
        name = f"zoo_plugin_file_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
        if name not in sys.modules:
            spec = spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise PluginError(f"{quoted(path)} cannot be imported")
            module = module_from_spec(spec)
            # Computed now, for the code that runs: the file may change later.
            vars(module)[SHA256] = hashlib.sha256(path.read_bytes()).hexdigest()
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        elif vars(sys.modules[name])[SHA256] != hashlib.sha256(path.read_bytes()).hexdigest():
            warnings.warn(
                f"{quoted(path)} has changed since it was imported, and its old code is used: "
                "restart Python (in a notebook, the kernel) for the new one",
                stacklevel=2,
            )
        return sys.modules[name]


def _import_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports is missing
        hint = "install its package, or correct the line; a file is named as `folder/file.py:Class`"
        raise PluginError(f"there is no module {quoted(error.name)}", help=hint) from None


class PluginManager(DriverManager[Any]):
    """stevedore's driver manager over one entry point."""

    def __init__(self, point: PluginEntryPoint) -> None:
        self._point = point
        super().__init__(point.group, point.name)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._point]
