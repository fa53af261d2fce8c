"""Compare many models in a table: `zoo table`. Imports no torch, unless operations are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from zoo.byte_counts import human_bytes
from zoo.component import Component, LayerRules, fields_of
from zoo.errors import InputError
from zoo.registry import Registry, in_force
from zoo.reports.diff import Comparable, Side
from zoo.resolving.node import Node
from zoo.showing.children import distinctive_values, is_absent
from zoo.showing.data import Summary
from zoo.showing.full_form import origin_of
from zoo.spec import ModelSpec

WIDEST = 40
"""The most characters of a cell in the text; the data has all."""
LINE = 100
"""The most characters of a line; a wider table with more values than models is turned."""
SIZES = ("parameters", "active", "flops_per_token", "flops_per_image", "cache_bytes")


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


def names_of(sides: Sequence[Side]) -> list[str]:
    """Return the names of models: where several have the same, as their sources were given."""
    names = Counter(side.spec.name for side in sides)
    return [side.spec.name if names[side.spec.name] == 1 else side.source for side in sides]


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


class Value(NamedTuple):
    """A value, and whether it was written in a file or is a default."""

    value: Any
    stated: bool


_ABSENT = Value(None, False)


def differing(
    sides: Iterable[Mapping[str, Value]], taken: Collection[str]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the values of each key path that some side states and that differ, under a name of its
    own that is not `taken`: the shortest end of the path that is clear, and for a `kind` that of
    its table. Values of one name that differ in the same way are told once."""
    found = list(sides)
    alike: dict[tuple[str, str], tuple[list[str], tuple[object, ...]]] = {}
    paths = _in_order(found)
    for path in paths:
        values = [side.get(path, _ABSENT) for side in found]
        told = [repr(one.value) for one in values]
        if len(set(told)) > 1 and any(one.stated for one in values):
            name = path.removesuffix(".kind")
            same = alike.setdefault(
                (name.rpartition(".")[2], repr(told)), ([], tuple(one.value for one in values))
            )
            same[0].append(name)
    everywhere = {*taken} | {path.removesuffix(".kind") for path in paths}
    for same_paths, row in alike.values():
        yield _short(same_paths[0], everywhere.difference(same_paths)), row


def _values_of(spec: ModelSpec) -> dict[str, Value]:
    """Return the values of a spec by their paths. A saved spec states all of them, so that there,
    the kinds that are not `none` count as stated, and the values that are not defaults."""
    origin = spec.origin
    if origin is not None and origin.kind is not None and origin.kind.document.stored:
        origin = None
    found = _values(spec.to_dict(), spec.model, origin, "")
    del found["format"], found["name"]
    return found


def _short(path: str, others: Iterable[str]) -> str:
    """Return the shortest end of a path that is the end of none of the others."""
    ends = [f".{other}" for other in others]
    parts = path.split(".")
    for n in range(1, len(parts)):
        short = ".".join(parts[-n:])
        if not any(end.endswith(f".{short}") for end in ends):
            return short
    return path


def _in_order(found: Sequence[Mapping[str, object]]) -> list[str]:
    """Return all paths in the order of the full forms: a path that only some have stands behind
    the one that is before it there."""
    paths: list[str] = []
    for side in found:
        at = 0
        for path in side:
            if path not in paths:
                paths.insert(at, path)
            at = paths.index(path) + 1
    return paths


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
        name: _of_layers([layer.get(name, _ABSENT) for layer in layers])
        for name in _in_order(layers)
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
    """Format the rows: numbers on the right, the rest on the left. A table wider than `LINE` that
    has more values than models gets a line for each value."""
    keys = list(rows[0])
    columns = [[key, *(cell(key, row[key]) for row in rows)] for key in keys]
    numbers = [all(isinstance(row[key], int | float | None) for row in rows) for key in keys]
    return laid_out(columns, numbers)


def laid_out(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """The lines of a table, of columns that begin with their names and of which those that are
    `right` stand on the right. A table wider than `LINE` with more columns than rows below the
    names gets a line for each column."""
    text = aligned(columns, right)
    if len(columns) >= len(columns[0]) and any(len(line) > LINE for line in text.split("\n")):
        turned = [list(line) for line in zip(*columns, strict=True)]
        return aligned(turned, [False] * len(turned))
    return text


def aligned(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """The lines of a table; the columns that are `right` stand on the right."""
    padded: list[list[str]] = []
    for cells, on_the_right in zip(columns, right, strict=True):
        align, width = ">" if on_the_right else "<", max(map(len, cells))
        padded.append([f"{cell:{align}{width}}" for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def cell(key: str, value: object) -> str:
    """Tell the value of a key."""
    if value is None:
        return ""
    if isinstance(value, dict):
        text = _of_each([cell("", one) or "none" for one in value["per_layer"]])
        return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
    if isinstance(value, list):
        return f"[{', '.join(cell('', one) for one in value)}]"
    if key in SIZES and isinstance(value, int):
        return human_bytes(value) if key == "cache_bytes" else f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_each(values: Sequence[str]) -> str:
    """Tell the values of all layers: `512 x 5, none`, or `(512, none) x 3` where they repeat."""
    n = len(values)
    for period in range(2, n // 2 + 1):
        if all(values[i] == values[i % period] for i in range(n)):
            times, rest = divmod(n, period)
            whole = f"({_of_each(values[:period])}) x {times}"
            return f"{whole}, {_of_each(values[:rest])}" if rest else whole
    runs = [(one, len(list(same))) for one, same in groupby(values)]
    return ", ".join(one if count == 1 else f"{one} x {count}" for one, count in runs)
