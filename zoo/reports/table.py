"""Compare many models in a table: `zoo table`. Imports no torch, unless operations are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.byte_counts import human_bytes
from zoo.component import Component, LayerRules, fields_of
from zoo.errors import InputError
from zoo.registry import Registry, in_force
from zoo.reports.columns import ABSENT, Value, cell, differing, in_order, laid_out
from zoo.reports.sides import Comparable, Side, names_of
from zoo.resolving.node import Node
from zoo.showing.children import distinctive_values, is_absent
from zoo.showing.data import Summary
from zoo.showing.full_form import origin_of
from zoo.spec import ModelSpec

SIZES = ("parameters", "active", "flops_per_token", "flops_per_image", "cache_bytes")
"""The columns of sizes, each a number."""


def table(
    specs: Iterable[Comparable], size: int | None = None, *, registry: Registry | None = None
) -> list[dict[str, Any]]:
    """Compare any number of models: what `zoo table --json` prints, a row for each, as plain data.

    Args:
        specs: each what `zoo.diff` takes.
        size: a number of tokens, or of images, for which operations and the cache are counted.
        registry: looks up names; by default the registries around the working directory.

    Returns:
        Rows with the same keys in the same order: the `name`; the number of `parameters` and, if
        some model has experts, of those that are `active` for one token; with a `size`, the
        operations of `zoo.flops` (`flops_per_token` or `flops_per_image`) and `cache_bytes`, which
        generation keeps of a sequence of `size` tokens, with as many source tokens if there is a
        source, with keys and values in bfloat16. Then each value that some spec states and that is
        not the same in all. Its key is the short one, or as much of the path in the full form as
        tells it from values of that name that are the same in all or differ in another way; a
        `kind` has the name of its slot. None where a spec has no such value;
        `{"per_layer": [...]}`, as in a spec, where not all layers have the same.

    Raises:
        InputError: `specs` is one model, or a model cannot be called with `size` tokens.
        ZooError: a spec cannot be read.
    """
    if isinstance(specs, str | Mapping) or not isinstance(specs, Iterable):
        raise InputError("`specs` is a list, of one model too: `table([...])`")
    registry = in_force(registry)
    sides = [Side.of(source, registry) for source in specs]
    if not sides:
        return []
    rows: list[dict[str, Any]] = [{"name": name} for name in names_of(sides)]
    sizes = [_sizes(side.spec, size) for side in sides]
    columns = [(key, [found.get(key) for found in sizes]) for key in SIZES]
    with_experts = columns[0][1] != columns[1][1]
    for key, values in [
        *((key, found) for key, found in columns if any(found)),
        *differing(map(_values_of, (side.spec for side in sides)), {"name", *SIZES}),
    ]:
        if key != "active" or with_experts:
            for row, value in zip(rows, values, strict=True):
                row[key] = value
    return rows


# --- sizes --------------------------------------------------------------------------------------


def _sizes(spec: ModelSpec, size: int | None) -> dict[str, int | None]:
    sizes: dict[str, int | None] = {"parameters": spec.n_parameters, "active": spec.n_active}
    if size is not None:
        from zoo.reports.flops import flops

        found = flops(spec, size)
        sizes["flops_per_token"], sizes["flops_per_image"] = found["per_token"], found["per_image"]
        sizes["cache_bytes"] = cache_bytes(spec.summary(), size) or None
    return sizes


def cache_bytes(summary: Summary, length: int) -> int:
    """Return the bytes that generation keeps of a sequence of `length` tokens, and of as many
    source tokens if there is a source: keys and values in bfloat16, and the state in float32."""
    recent = summary["kv_cache_of_last_tokens"]
    of_all = summary["kv_cache_bytes_per_token"]["bfloat16"]
    of_all -= sum(part["bytes_per_token"]["bfloat16"] for part in recent)
    of_all += summary["kv_cache_bytes_per_source_token"]["bfloat16"]
    of_last = sum(
        part["bytes_per_token"]["bfloat16"] * min(length, part["tokens"]) for part in recent
    )
    of_several = sum(
        part["bytes"]["bfloat16"] * -(-length // part["tokens"])
        for part in summary["kv_cache_of_several_tokens"]
    )
    return of_all * length + of_last + of_several + summary["state_bytes_per_sequence"]


# --- values -------------------------------------------------------------------------------------


def _values_of(spec: ModelSpec) -> dict[str, Value]:
    """Return the values of a spec by their paths. A saved spec states all of them, so that there,
    the kinds that are not `none` count as stated, and the values that are not defaults."""
    origin = spec.origin
    if origin is not None and origin.kind is not None and origin.kind.document.stored:
        origin = None
    found = _values(spec.to_dict(), spec.model, origin, "")
    del found["format"], found["name"]
    return found


def _values(
    data: Mapping[str, Any], component: Component | None, node: Node | None, path: str
) -> dict[str, Value]:
    """Return the values in a table of the full form by their paths. What rules for single layers
    change is one value for each layer.

    Args:
        data: the table.
        component: what it describes.
        node: where its values were written, if the spec is not a saved one.
        path: what its paths begin with.
    """
    rules, count = _rules_of(component)
    own: set[str] = set()
    if component is not None and not is_absent(component):
        own = {"kind", "builder", *distinctive_values(component)}
    found: dict[str, Value] = {}
    for key, value in data.items():
        below = node.values.get(key) if node is not None else None
        if isinstance(value, Mapping):
            inner = getattr(component, key, None)
            found |= _values(
                value,
                inner if isinstance(inner, Component) else None,
                below if isinstance(below, Node) else None,
                f"{path}{key}.",
            )
        elif key != rules:
            root = not path
            stated = (
                key in own if node is None else origin_of(node, key, value, root=root) != "default"
            )
            found[path + key] = Value(value, stated)
    if component is None or rules is None or not data[rules]:
        return found
    below = node.values[rules] if node is not None else None
    groups = zip(data[rules], getattr(component, rules), strict=True)
    return _with_rules(found, groups, below, data[count], path)


def _with_rules(
    found: dict[str, Value],
    rules: Iterable[tuple[Mapping[str, Any], Component]],
    below: object,
    n_layers: int,
    path: str,
) -> dict[str, Value]:
    """Return the values of a stack with what rules for single layers change. Each rule is its
    table with what it describes; `below` are their nodes, if there are some."""
    layers = [found] * n_layers
    for number, (rule, group) in enumerate(rules):
        node = below[number] if isinstance(below, list) else None
        own = {key: value for key, value in rule.items() if key != "at"}
        changed = _values(own, group, node, path)
        replaced = tuple(f"{path}{key}." for key in own)
        kept = {name: one for name, one in found.items() if not name.startswith(replaced)}
        for layer in rule["at"]:
            layers[layer] = kept | changed
    return {
        name: _of_layers([layer.get(name, ABSENT) for layer in layers]) for name in in_order(layers)
    }


def _rules_of(component: Component | None) -> tuple[str | None, str]:
    """Return the names of the fields with the rules for single layers, if a component has such, and
    with the number of its layers."""
    for name, mark in fields_of(type(component)).items() if component is not None else ():
        if isinstance(mark, LayerRules):
            return name, mark.count
    return None, ""


def _of_layers(values: Sequence[Value]) -> Value:
    """Return the values of all layers as one: the value of each if they are the same."""
    stated = any(one.stated for one in values)
    same = len({repr(one.value) for one in values}) == 1
    return Value(values[0].value if same else {"per_layer": [one.value for one in values]}, stated)


# --- text ---------------------------------------------------------------------------------------


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows: numbers on the right, the rest on the left. A table too wide for a
    line that has more values than models gets a line for each value."""
    keys = list(rows[0])
    columns = [[key, *(_cell(key, row[key]) for row in rows)] for key in keys]
    numbers = [all(isinstance(row[key], int | float | None) for row in rows) for key in keys]
    return laid_out(columns, numbers)


def _cell(key: str, value: object) -> str:
    """Format the value of a column."""
    if key in SIZES and isinstance(value, int):
        return human_bytes(value) if key == "cache_bytes" else f"{value:,}"
    return cell(value)
