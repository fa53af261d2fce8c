"""Compare two models: their specs value by value, then their tensors. Does not import torch.

A side is a spec or a weights file. Two weights files are compared by the digests in their headers;
if one side is a spec, only the names and shapes of the tensors are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tomlkit

from zoo.registry import Registry, in_force
from zoo.reports.data import Diff, TensorRecord, Tensors, ValueChange, Written
from zoo.reports.sides import Comparable, Side
from zoo.resolving.node import Node
from zoo.showing.full_form import origin_of, tables_in
from zoo.wording import counted

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def diff(a: Comparable, b: Comparable, *, registry: Registry | None = None) -> Diff:
    """Compare two models: what `zoo diff --json` prints, as plain data. Imports no torch.

    Tensors are compared by their SHA-256 if both sides are weights, otherwise by name and shape.

    Args:
        a: a spec, or anything that `zoo.read_spec` reads; or weights that the zoo has saved, a
            `.safetensors` file or its folder.
        b: the other one.
        registry: looks up names; by default the registries around the working directory.

    Returns:
        The differing values of the specs (`spec`), each with its path in the full form and with
        the line where either side states it; and the `tensors` that were added in `b`, removed from
        `a` or changed, and the number of equal ones. `equal` is true if nothing differs.

    Raises:
        ZooError: a side cannot be read.
    """
    registry = in_force(registry)
    return diff_data(Side.of(a, registry), Side.of(b, registry))


def diff_data(a: Side, b: Side) -> Diff:
    """Return the differences of two sides, as `diff`."""
    values = value_changes(a, b)
    tensors = _tensor_differences(a, b)
    changes = [*values, *tensors["added"], *tensors["removed"], *tensors["changed"]]
    return {"a": a.source, "b": b.source, "equal": not changes, "spec": values, "tensors": tensors}


def value_changes(a: Side, b: Side) -> list[ValueChange]:
    """Return the differing values of the specs alone."""
    return list(_table_differences(_spec_table(a), _spec_table(b), ""))


# --- specs --------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """A table of a resolved spec, the node of its component, which knows where the values were
    written, and the nodes inside that. A list of tables is also one, with indices as keys."""

    data: Mapping[str, Any]
    node: Node | None
    below: Mapping[str, object]

    def inner(self, key: str) -> _Table | None:
        """Return the table or list of tables at a key; None if the key is absent or holds a value.
        An empty list counts as a list of tables."""
        value, below = self.data.get(key), self.below.get(key)
        if isinstance(value, Mapping):
            return _table(value, below if isinstance(below, Node) else None)
        if isinstance(value, list) and len(tables_in(value)) == len(value):
            nodes = below if isinstance(below, list) else []
            return _Table(_numbered(value), None, _numbered(nodes))
        return None

    def only(self, keys: Sequence[str]) -> _Table:
        """Return the table with these keys alone."""
        return self._replace(data={key: self.data[key] for key in keys if key in self.data})

    def told(self, key: str, *, root: bool) -> Written | None:
        """Return the value at a key and where it was written; None if the key is absent."""
        if key not in self.data:
            return None
        value, origin = self.data[key], None
        if self.node is not None and not tables_in(value):
            origin = origin_of(self.node, key, value, root=root)
        return {"value": value, "origin": origin}


def _spec_table(side: Side) -> _Table:
    """Return the spec of a side. A weights file states every value at its path, which says nothing
    about where it was written, so its values have no origin."""
    return _table(side.spec.to_dict(), side.spec.origin if side.records is None else None)


def _table(data: Mapping[str, Any], node: Node | None) -> _Table:
    return _Table(data, node, {} if node is None else node.values)


def _numbered(items: Sequence[object]) -> dict[str, object]:
    return {str(number): item for number, item in enumerate(items)}


def _table_differences(a: _Table, b: _Table, prefix: str) -> Iterator[ValueChange]:
    """Yield each value that differs; a table that only one side has is a single value."""
    for key in dict.fromkeys([*a.data, *b.data]):
        path = f"{prefix}{key}"
        left, right = a.inner(key), b.inner(key)
        if left is not None and right is not None:
            if _of_layers(a.data[key]) or _of_layers(b.data[key]):
                yield from _layer_differences(a, b, key, path)
            else:
                yield from _table_differences(left, right, f"{path}.")
        elif not _same(a.data.get(key), b.data.get(key)):
            one, other = (side.told(key, root=not prefix) for side in (a, b))
            yield {"path": path, "a": one, "b": other}


def _of_layers(value: object) -> dict[int, str]:
    """Return the layers that a list of rules for layers speaks of, each with the number of its
    rule; none for another value."""
    rules = tables_in(value) if isinstance(value, list) else []
    return {layer: str(n) for n, rule in enumerate(rules) for layer in rule.get("at", ())}


def _layer_differences(a: _Table, b: _Table, key: str, path: str) -> Iterator[ValueChange]:
    """Yield each value that differs in the layers of two stacks that some rule speaks of. A layer
    without a rule has the values of its stack. The numbers of the layers stand in the path."""
    one_of, other_of = (_of_layers(side.data[key]) for side in (a, b))
    a_rules, b_rules = (side.inner(key) or _table({}, None) for side in (a, b))
    alike: dict[tuple[str | None, str | None], list[int]] = {}
    for layer in sorted({*one_of, *other_of}):
        alike.setdefault((one_of.get(layer), other_of.get(layer)), []).append(layer)
    found: list[ValueChange] = []
    for (one, other), layers in alike.items():
        left, right = a_rules.inner(one or ""), b_rules.inner(other or "")  # None without a rule
        keys = [name for name in (left or right or a).data if name != "at"]
        sides = ((left or a).only(keys), (right or b).only(keys))
        found += _table_differences(*sides, f"{path}{layers}.")
    at = [[rule["at"] for rule in side.data[key]] for side in (a, b)]
    if not found and at[0] != at[1]:  # some rules change nothing, or say together what others say
        one_at, other_at = (Written(value=value, origin=None) for value in at)
        found.append({"path": f"{path}.at", "a": one_at, "b": other_at})
    yield from found


def _same(a: object, b: object) -> bool:
    """Compare two values; unlike `==`, `True` and 1 differ, also in arrays. 1 and 1.0 are equal."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b and isinstance(a, bool) == isinstance(b, bool)


# --- tensors ------------------------------------------------------------------------------------


def _tensor_differences(a: Side, b: Side) -> Tensors:
    by_digest = a.records is not None and b.records is not None
    left, right = (_tensors(side, by_digest) for side in (a, b))
    common = [name for name in left if name in right]
    changed = [name for name in common if left[name] != right[name]]
    return {
        "compared": ["shape", "dtype", "sha256"] if by_digest else ["shape"],
        "added": [{"name": name, **right[name]} for name in right if name not in left],
        "removed": [{"name": name, **left[name]} for name in left if name not in right],
        "changed": [{"name": name, "a": left[name], "b": right[name]} for name in changed],
        "equal": len(common) - len(changed),
    }


def _tensors(side: Side, by_digest: bool) -> dict[str, TensorRecord]:
    if side.records is None or not by_digest:
        return {name: {"shape": list(t.shape)} for name, t in side.spec.tensors.items()}
    return {
        name: {"shape": list(record.shape), "dtype": record.dtype, "sha256": record.sha256}
        for name, record in side.records.items()
    }


# --- text ---------------------------------------------------------------------------------------


def diff_text(data: Diff) -> str:
    """Format the differences as text: a value that is read in several places is listed once, and so
    are tensors that differ in the same way in several layers. What a table has on one side only, as
    after a change of its kind, is listed together."""
    if data["equal"]:
        equal = _how_equal(data["tensors"])
        return f"{data['a']} and {data['b']} are equal: the specs, and {equal}"
    lines = [f"--- {data['a']}", f"+++ {data['b']}"]
    lines += _spec_text(data["spec"])
    lines += _tensors_text(data["tensors"])
    return "\n".join(lines)


def _how_equal(tensors: Tensors) -> str:
    how = "byte for byte" if "sha256" in tensors["compared"] else "by name and shape"
    return f"{counted(tensors['equal'], 'tensor')} {how}"


def _spec_text(differences: list[ValueChange]) -> list[str]:
    if not differences:
        return ["", "the specs are equal"]
    told: dict[tuple[str, ...], list[str]] = {}  # lines, and the tables that they are about
    alone: dict[str, list[str]] = {}
    for difference in differences:
        path: str = re.sub(r"\.(\d+)$", r"[\1]", difference["path"])
        table, _, key = path.rpartition(".")
        one, other = difference["a"], difference["b"]
        if one is not None and other is not None:
            lines = (key, f"  - {_value_text(one)}", f"  + {_value_text(other)}")
            told.setdefault(lines, []).append(table)
        elif one is not None:
            alone.setdefault(table, []).append(f"  - {key} = {_value_text(one)}")
        elif other is not None:
            alone.setdefault(table, []).append(f"  + {key} = {_value_text(other)}")
    for table, values in alone.items():
        told.setdefault(("only in one", *values), []).append(table)
    text: list[str] = []
    for (head, *values), tables in told.items():
        where = ", ".join(f"[{table}]" for table in tables if table)
        text += ["", f"{head}  {where}".rstrip(), *values]
    return text


def _value_text(found: Written) -> str:
    value, origin = found["value"], found["origin"]
    if n_values := _n_values(value):
        told = f"a table with {counted(n_values, 'value')}"
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if not _n_values(inner):  # mostly the `kind`
                first = f"{key} = {tomlkit.item(inner).as_string()}"
                return f"{{ {first} }}" if n_values == 1 else f"{told}: {first}, ..."
        return told
    text = tomlkit.item(value).as_string()
    return f"{text}    # {origin}" if origin else text


def _n_values(value: object) -> int:
    """Return the number of values in a table or a list of tables; 0 for a plain value."""
    return sum(_n_values(inner) or 1 for table in tables_in(value) for inner in table.values())


def _tensors_text(tensors: Tensors) -> list[str]:
    rows = [
        *(("-", row["name"], _tensor_text(row)) for row in tensors["removed"]),
        *(("+", row["name"], _tensor_text(row)) for row in tensors["added"]),
        *(("~", row["name"], _change_text(row["a"], row["b"])) for row in tensors["changed"]),
    ]
    folded: dict[tuple[str, str, str], list[str]] = {}
    for sign, name, change in rows:
        folded.setdefault((sign, _NUMBER.sub("*", name), change), []).append(name)
    lines = [""]
    for (sign, pattern, change), names in folded.items():
        shown = names[0] if len(names) == 1 else f"{pattern} ({len(names)} tensors)"
        lines.append(f"{sign} {shown}  {change}")
    return [*lines, f"equal: {_how_equal(tensors)}"]


def _tensor_text(row: TensorRecord) -> str:
    shape = " x ".join(map(str, row["shape"])) or "scalar"
    return f"{row['dtype']} {shape}" if "dtype" in row else shape


def _change_text(a: TensorRecord, b: TensorRecord) -> str:
    one, other = _tensor_text(a), _tensor_text(b)
    return f"{one} -> {other}" if one != other else f"{one}, other bytes"
