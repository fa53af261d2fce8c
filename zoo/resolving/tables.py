"""A document as a tree of tables and leaves that know their position in the text, and the merging
of such trees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from zoo.document import Document, KeyPath
from zoo.errors import Findings, Place, Problem
from zoo.toml.limits import INTEGER_MESSAGE, MAX_INTEGER
from zoo.wording import quoted

REFUSED = object()
"""Stands for a value that is invalid in any spec; no field accepts it."""

PER_LAYER = "per_layer"
"""`{ per_layer = [...] }` states a value for each layer of a stack."""
FOR_EACH_LAYER = f"a value for each layer is written `{{ {PER_LAYER} = [...] }}`"
"""The help for a list in place of a value that layers read."""
FOR_SOME_LAYERS = f"{FOR_EACH_LAYER}, and one for some layers in a rule of `layers`"
"""The help for a table in place of such a value."""

MAX_FINDINGS = 1_000
"""Beyond this number of problems, the items of arrays are no longer checked."""


@dataclass(eq=False, slots=True)
class Leaf:
    """A value and its position in a document; `stated` is false for a default."""

    value: Any
    document: Document
    path: KeyPath
    stated: bool = True

    def place(self, *, value: bool = True) -> Place:
        return self.document.place(self.path, value=value)


@dataclass(eq=False, slots=True)
class Table:
    """A table and its position in a document. `merged` lists the tables that it was made from."""

    entries: dict[str, Leaf | Table]
    document: Document
    path: KeyPath
    merged: tuple[Table, ...] = ()

    def written(self) -> Iterable[Table]:
        """Return this table and all tables that it was made from, each once."""
        if not self.merged:  # as most, which are asked for each key that is looked up
            return (self,)
        found: dict[Table, None] = {}
        left = [self]
        while left:
            table = left.pop()
            if table not in found:
                found[table] = None
                left += table.merged
        return found

    def place(self, *, value: bool = False) -> Place:
        return self.document.place(self.path, value=value)


def as_table(
    data: Mapping[str, Any], document: Document, path: KeyPath, findings: Findings
) -> Table:
    """Convert the data at `path` of a document to a table.

    Values that are invalid in any spec are reported to `findings`: dates, nan and inf, integers
    beyond 2**53 - 1, keys that are not strings, and values that are nested too deeply.
    """
    entries: dict[str, Leaf | Table] = {}
    for key, value in data.items():
        here = (*path, key)
        if message := _key_message(key, here, document.max_depth):
            findings.add(Problem(message, document.place(path)))
        elif isinstance(value, dict):
            entries[key] = as_table(value, document, here, findings)
        else:
            allowed = _check_value(value, document, here, findings)
            entries[key] = Leaf(value if allowed else REFUSED, document, here)
    return Table(entries, document, path)


def _key_message(key: object, path: KeyPath, limit: int) -> str | None:
    if not isinstance(key, str):
        return f"the key {quoted(key)} is not a string"
    return f"keys are nested more than {limit} deep" if len(path) > limit else None


def _check_value(value: Any, document: Document, path: KeyPath, findings: Findings) -> bool:
    """Return whether a value that is not a table is allowed in a spec. True for an array, whose
    invalid items are reported by themselves."""
    if isinstance(value, dict):  # in an array
        as_table(value, document, path, findings)
        return True
    if isinstance(value, list | tuple) and len(path) <= document.max_depth:
        for index, item in enumerate(value):
            if len(findings) >= MAX_FINDINGS:
                break
            _check_value(item, document, (*path, index), findings)
        return True
    refused = _refused(value, document.max_depth)
    if refused is not None:
        message, hint = refused
        findings.add(Problem(message, document.place(path, value=True), hint))
    return refused is None


def _refused(value: Any, max_depth: int) -> tuple[str, str | None] | None:
    """Return why a value has no place in a spec, and a help text; None if it has one. Of arrays,
    only those beyond the depth are asked about."""
    if isinstance(value, list | tuple):
        return f"values are nested more than {max_depth} deep", None
    if not isinstance(value, bool | str | int | float):
        hint = None
        if value is None:
            hint = "leave the key out"
        elif hasattr(value, "item"):  # a number of NumPy or torch
            hint = "`.item()` makes a plain number of it"
        elif hasattr(value, "to_toml"):  # a spec that was read, by `extends`
            hint = (
                "name the file or the model that it was read from; of a dict, use `{**base, ...}`"
            )
        return f"{described(value)} has no place in a spec", hint
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return INTEGER_MESSAGE, None
    if isinstance(value, float) and not math.isfinite(value):
        return f"`{value}` is not a finite number", None
    return None


def is_list_of_tables(value: object) -> TypeGuard[Sequence[dict[str, Any]]]:
    """Whether a value is written as `[[...]]`, or could be."""
    return isinstance(value, list | tuple) and all(isinstance(item, dict) for item in value)


def described(value: object) -> str:
    """Describe a value for a message, with the name that TOML has for its type."""
    if isinstance(value, bool):
        return f"the boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, int):
        return f"the integer `{value}`" if abs(value) <= MAX_INTEGER else "a huge integer"
    if isinstance(value, float):
        return f"the float `{value}`"
    if isinstance(value, list | tuple):
        return "an array"
    if value is None:
        return "`None`"
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return "a table" if isinstance(value, Mapping) else f"{article} {name}"


def merge(outer: Table, inner: Table) -> Table:
    """Merge `inner` over `outer`, key by key; an inner value that is a table of another `kind`
    replaces the outer one."""
    entries = dict(outer.entries)
    for key, value in inner.entries.items():
        below = entries.get(key)
        entries[key] = value if below is None else merge_values(below, value)
    return Table(entries, inner.document, inner.path, (outer, inner))


def merge_values(outer: Leaf | Table, inner: Leaf | Table) -> Leaf | Table:
    """Merge `inner` over `outer` if both can be tables of the same kind; if not, return `inner`."""
    if isinstance(outer, Leaf) and isinstance(inner, Leaf):
        return inner
    below, above = long_form(outer), long_form(inner)
    if isinstance(outer, Table) and above is not None and "kind" not in above.entries:
        return merge(outer, above)  # over values for each layer too, which do not get lost
    if below is None or above is None:
        return inner
    return merge(below, above) if same_kind(below, above) else inner


def same_kind(outer: Table, inner: Table) -> bool:
    """Return whether two tables have the same `kind`; true if either does not state one."""
    old, new = outer.entries.get("kind"), inner.entries.get("kind")
    return not (isinstance(old, Leaf) and isinstance(new, Leaf) and old.value != new.value)


def long_form(value: Leaf | Table) -> Table | None:
    """Expand `"mlp"` to the table `{ kind = "mlp" }`; None if the value cannot be a table, or is
    one for each layer."""
    if isinstance(value, Table):
        return None if PER_LAYER in value.entries else value
    if isinstance(value.value, str):
        return Table({"kind": value}, value.document, value.path)
    return None
