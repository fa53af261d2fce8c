"""Files of a user's project: a registry, a spec, components and their tests, from templates."""

from __future__ import annotations

import contextlib
import importlib.resources
import keyword
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template

from zoo.document import read_document
from zoo.errors import Problem, RegistryError, ZooError
from zoo.files.atomic import write_text
from zoo.registering.registry_file import FILE_NAME, NAME, NAME_RULE, SOURCE
from zoo.registry import load_registry
from zoo.slots import SLOTS
from zoo.wording import did_you_mean, quoted


def new_project(folder: Path) -> list[Path]:
    """Write a project: a registry, a spec, and the component that it names with its test.

    Returns:
        The paths of the files.

    Raises:
        ZooError: one of the files exists already or cannot be written; then none is written.
    """
    files = {
        folder / FILE_NAME: _template("registry.toml"),
        folder / "my_model.toml": _template("my_model.toml"),
        **_plugin_files(folder, "ffn", "my_ffn", "MyFfn"),
    }
    _write_new(files)
    return list(files)


def new_plugin(slot: str, name: str, registry: Path) -> list[Path]:
    """Write a working component for a slot, or a `source`, and its test, and register it in the
    file `registry`.

    Returns:
        The paths of the new files.

    Raises:
        RegistryError: the slot does not exist, the name is invalid or taken, or no line can be
            added to the registry.
        ZooError: one of the files exists already or cannot be written; then nothing changes.
    """
    if slot not in (groups := (*SLOTS, SOURCE)):
        hint = did_you_mean(slot, groups)
        raise RegistryError(f"unknown slot {quoted(slot)}", help=hint)
    if not NAME.fullmatch(name):
        raise RegistryError(
            f"{quoted(name)} is not a valid name for a plugin",
            help=f"names are made of {NAME_RULE}",
        )
    if taken := load_registry(registry).entries(slot).get(name):
        raise RegistryError(
            f"{slot} {quoted(name)} is registered already", taken.place, "choose another name"
        )
    cls = _class_name(slot, name)
    files = _plugin_files(registry.parent, slot, name, cls)
    text = _with_entry(registry, slot, name, f"plugins/{name}.py:{cls}")
    _write_new(files)
    try:
        write_text(registry, text)
    except ZooError:
        for path in files:
            path.unlink()
        raise
    return list(files)


def nearest_registry() -> Path:
    """Return the nearest `registry.toml` in the working directory or above it.

    Raises:
        RegistryError: there is none.
    """
    here = Path.cwd()
    for folder in (Path(), *here.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise RegistryError(
        f"there is no {FILE_NAME} in {here} or above it", help="`zoo init` makes a project"
    )


def _template(name: str, /, **values: str) -> str:
    text = (
        importlib.resources.files("zoo.plugin_kit")
        .joinpath("templates", f"{name}.tmpl")
        .read_text("utf-8")
    )
    return Template(text).substitute(values)


def _plugin_files(folder: Path, slot: str, name: str, cls: str) -> dict[Path, str]:
    test = "test_source.py" if slot == SOURCE else "test.py"
    return {
        folder / "plugins" / f"{name}.py": _template(f"{slot}.py", name=name, class_name=cls),
        folder / "tests" / f"test_{name}.py": _template(test, slot=slot, name=name),
    }


def _class_name(slot: str, name: str) -> str:
    """Convert `my_ffn` to `MyFfn`; the slot is appended if the template uses that word already."""
    cls = "".join(part.capitalize() for part in name.split("_"))
    used = re.search(rf"\b{cls}\b", _template(f"{slot}.py", name="", class_name=""))
    return cls + slot.capitalize() if used or keyword.iskeyword(cls) else cls


def _with_entry(registry: Path, slot: str, name: str, target: str) -> str:
    """Return the text of the registry with one more line, below those of its slot."""
    document = read_document(registry)
    text = document.text or ""
    end = "\r\n" if "\r\n" in text else "\n"
    entries = document.data.get(slot)
    line = f'{name} = "{target}"'
    if isinstance(entries, dict):
        places = [document.place((slot, key)) for key in entries] or [document.place((slot,))]
        lines = text.split("\n")
        lines.insert(max(place.line or 0 for place in places), line + end[:-1])
        changed = "\n".join(lines)
    else:
        changed = f"{text.rstrip()}{end}{end}[{slot}]{end}{line}{end}"
    wanted = {**document.data, slot: {**(entries or {}), name: target}}
    with contextlib.suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(changed) == wanted:
            return changed
    # The slot is not written as a table with one line for each name.
    raise RegistryError(
        f"no line can be added to `{slot}`", document.place((slot,)), f"add it there: {line}"
    )


def _write_new(files: Mapping[Path, str]) -> None:
    """Write files that do not exist yet, all or none."""
    if there := [path for path in files if os.path.exists(path)]:
        raise ZooError(
            Problem(
                f"{quoted(path)} is there already",
                help="nothing is overwritten, nothing is written",
            )
            for path in there
        )
    written: list[Path] = []
    try:
        for path, text in files.items():
            write_text(path, text)
            written.append(path)
    except ZooError:
        for path in written:
            path.unlink()
        raise
