"""Short summaries of components: the beginnings of their docstrings.

They are read from the source, without importing plugins: listing must not run plugin code.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from zoo.registering.registry_file import Entry


def summary(doc: str) -> str:
    """Return the beginning of a docstring, up to the first full stop, colon or parenthesis."""
    return re.split(r"(?<!/) \(|: |\. |\.$", " ".join(doc.split()))[0]


def summary_of(entry: Entry) -> str:
    """Return the summary of the class that an entry names; empty if the class has no docstring of
    its own or its source is not available."""
    where, _, name = entry.target.rpartition(":")
    path = entry.folder / where if where.endswith(".py") else _module_file(where)
    source = "" if path is None else _source(path)
    header = rf"^class {name}(?:\([^:\"'()]*\))?:(?:[ ]*#[^\n]*)?"
    found = re.search(header + r'\s*[rR]?"""(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return "" if found is None else summary(found[1])


@cache
def _module_file(name: str) -> Path | None:
    """Return the file of a module without importing anything: `find_spec` is called only for the
    outermost package, since it imports the parents of a submodule."""
    from importlib.util import find_spec

    first, *inner = name.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    if not inner:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    inside = [Path(folder, *inner) for folder in spec.submodule_search_locations or ()]
    files = (file for path in inside for file in (path.with_suffix(".py"), path / "__init__.py"))
    return next(filter(Path.is_file, files), None)


@cache
def _source(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
