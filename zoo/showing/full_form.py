"""The full form of a spec as TOML: one table per stack and slot, every default filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tomlkit

from zoo.resolving.node import Node
from zoo.resolving.tables import Leaf
from zoo.wording import printable


def to_toml(data: Mapping[str, Any], origin: Node | None = None) -> str:
    """Format the data of a resolved spec as TOML; with its `origin`, comments say where each value
    was written."""
    return "".join(f"{line}\n" for line in _lines(data, origin, ""))


def _lines(data: Mapping[str, Any], node: Node | None, path: str) -> Iterator[str]:
    """Yield the lines of the table at `path`: its values, then the tables inside it below their
    heads. tomlkit formats only keys and values: for a whole document it takes quadratic time."""
    for key, value in data.items():
        if not tables_in(value):
            origin = f" # {origin_of(node, key, value, root=not path)}" if node is not None else ""
            yield f"{_key(key)} = {tomlkit.item(value).as_string()}{origin}"
    for key, value in data.items():
        inner = f"{path}.{_key(key)}" if path else _key(key)
        head = f"[{inner}]" if isinstance(value, Mapping) else f"[[{inner}]]"
        nodes = node.values.get(key) if node is not None else None
        for index, table in enumerate(tables_in(value)):
            below = nodes[index] if isinstance(nodes, list) else nodes
            yield from ("", head)
            yield from _lines(table, below if isinstance(below, Node) else None, inner)


def tables_in(value: object) -> list[Mapping[str, Any]]:
    """Return a table, or the tables of a list of tables, as a list; empty for other values."""
    items = value if isinstance(value, list) else [value]
    tables = [item for item in items if isinstance(item, Mapping)]
    return tables if len(tables) == len(items) else []


def _key(name: str) -> str:
    return tomlkit.key(name).as_string()


def origin_of(node: Node, key: str, value: object, *, root: bool) -> str:
    """Return the file and line where a value of a component was written, or `default`."""
    leaf: object = node.values.get(key)
    if key == "kind" or (root and key == "builder"):
        leaf = node.kind
        if leaf is not None and leaf.value != value:  # what is stated has no effect here
            return "default"
    elif leaf == [] or (
        root and key in ("format", "name")
    ):  # `layers = []` has no rule with an origin
        leaf = node.table.entries.get(key)
    if not isinstance(leaf, Leaf) or not leaf.stated:
        return "default"
    place = leaf.place()
    return printable(f"{place.file}:{place.line}" if place.line else place.file)
