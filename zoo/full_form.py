"""The full form of a spec as TOML: one table per stack and slot, every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import Table

from zoo.node import Node
from zoo.tables import Leaf

if TYPE_CHECKING:
    from zoo.spec import ModelSpec


def to_toml(spec: ModelSpec, *, origins: bool = False) -> str:
    """The resolved spec as TOML text; with `origins`, each value says where it was written."""
    return data_to_toml(spec.to_dict(), spec.origin if origins else None)


def data_to_toml(data: Mapping[str, Any], origin: Node | None = None) -> str:
    """A resolved spec, given as plain data, as TOML text; `origin` knows where values are from."""
    document = tomlkit.document()
    _fill(document, data, origin, root=True)
    return tomlkit.dumps(document)


def _fill(
    table: Container | Table, data: Mapping[str, Any], node: Node | None, *, root: bool = False
) -> None:
    for key, value in data.items():
        if _is_table(value) or _is_list_of_tables(value):
            continue
        item = tomlkit.item(value)
        if node is not None:
            item.comment(origin_of(node, key, root=root))
        table.add(key, item)
    for key, value in data.items():
        if _is_table(value):
            inner = tomlkit.table()
            child = node.values.get(key) if node is not None else None
            _fill(inner, value, child if isinstance(child, Node) else None)
            table.add(key, inner)
        elif _is_list_of_tables(value):
            rules = tomlkit.aot()
            nodes = node.values.get(key) if node is not None else None
            for index, item in enumerate(value):
                inner = tomlkit.table()
                _fill(inner, item, nodes[index] if isinstance(nodes, list) else None)
                rules.append(inner)
            table.add(key, rules)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_table, value))


def origin_of(node: Node, key: str, *, root: bool) -> str:
    """The file and line where a component's value was written, or `default`."""
    leaf: object = node.values.get(key)
    if key == "kind" or (root and key == "builder"):
        leaf = node.kind
    elif leaf == [] or (root and key in ("format", "name")):  # `layers = []` has no rule to ask
        leaf = node.table.entries.get(key)
    if not isinstance(leaf, Leaf) or not leaf.stated:
        return "default"
    place = leaf.place()
    return f"{place.file}:{place.line}" if place.line else place.file
