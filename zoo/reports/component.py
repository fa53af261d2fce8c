"""What a component is and which keys it has: its description, as data, for `zoo show ffn.glu` and
for the pages of `docs/components`. Imports the plugin, and no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from textwrap import fill
from typing import Any, NamedTuple

from zoo.component import GIVEN, SHARED, Component, LayerRules, Part, Slot, fields_of
from zoo.errors import ZooError
from zoo.only_with import mark_of
from zoo.registry import Registry
from zoo.schema.field_docs import class_doc, field_docs
from zoo.schema.values import plain_value
from zoo.schema.words import described
from zoo.slots import Plugin

WIDTH = 100
OF_REGISTRY = "the registry's"
"""The default of a slot that a registry fills."""


class Key(NamedTuple):
    """A key that a spec can state. `value` says what may be written and `default` what counts
    otherwise, in words; literals stand between backticks."""

    name: str
    value: str
    shared: bool
    required: bool
    default: str
    meaning: str


class KeyTable(NamedTuple):
    """The keys of a component's own table, whose `path` is empty, or of a part of it."""

    path: str
    is_rule: bool
    meaning: str
    keys: tuple[Key, ...]


class Described(NamedTuple):
    """A registered component. `in_a_spec` is the line that asks for it."""

    slot: str
    kind: str
    is_default: bool
    target: str
    registry: str
    in_a_spec: str
    tables: tuple[KeyTable, ...]


def component_data(registry: Registry, slot: str, kind: str) -> Described:
    """Return what is known of a registered component.

    Raises:
        PluginError: it cannot be loaded.
    """
    cls = registry.plugin(slot, kind)
    entry, default = registry.plugins[slot][kind], registry.defaults.get(slot)
    return Described(
        slot=slot,
        kind=kind,
        is_default=default is not None and default.target == kind,
        target=entry.target,
        registry=entry.document.name,
        in_a_spec=_in_a_spec(slot, kind, cls),
        tables=(KeyTable("", False, class_doc(cls), _keys(cls)), *_parts(cls)),
    )


def components_with_key(registry: Registry, key: str) -> list[str]:
    """Return which builders, or else which defaults of slots, have this key, in their own table or
    in that of a part. Other components are not asked: to import them all takes seconds. Neither are
    files of a project, which may be in the making."""
    builders = [("builder", kind) for kind in registry.plugins["builder"]]
    defaults = [(slot, entry.target) for slot, entry in registry.defaults.items()]
    for components in (builders, defaults):
        found = []
        for slot, kind in components:
            entry = registry.plugins[slot].get(kind)
            if entry is None or entry.in_file:
                continue
            with suppress(ZooError):
                tables = component_data(registry, slot, kind).tables
                if any(one.name == key for table in tables for one in table.keys):
                    found.append(f"{slot}.{kind}")
        if found:
            return found
    return []


def component_json(found: Described) -> dict[str, Any]:
    """Return the same as plain data."""
    tables = [
        {**table._asdict(), "keys": [key._asdict() for key in table.keys]} for table in found.tables
    ]
    return {**found._asdict(), "tables": tables}


def component_text(found: Described, registry: Registry) -> str:
    """Format a component: what it is, how a spec asks for it, and its keys, table by table."""
    default = ", the default" if found.is_default else ""
    heading = f"{found.slot}.{found.kind}  ({found.target}{default})"
    lines = [fill(heading, WIDTH, subsequent_indent=" " * 2, break_long_words=False)]
    for table in found.tables:
        heading = f"[[{table.path}]]" if table.is_rule else f"[{table.path}]"
        lines += ["", heading] if table.path else [""]
        lines += [table.meaning] if table.meaning else []
        lines += [] if table.path else ["", f"    {found.in_a_spec}"]
        lines += ["", *(_key_text(key, registry) for key in table.keys)] if table.keys else []
    keys = [key for table in found.tables for key in table.keys]
    if not keys:
        lines += ["", "It has no keys."]
    if any(key.shared for key in keys):
        lines += [
            "",
            "Shared keys may stand in any table around the component; the nearest counts.",
        ]
    return "\n".join(lines)


def _key_text(key: Key, registry: Registry) -> str:
    """Format a key: first what may be written and what counts otherwise, below it the meaning."""
    default = key.default
    if default == OF_REGISTRY and (entry := registry.defaults.get(key.value)):
        default = f'`"{entry.target}"`'
    told = [
        key.value,
        "required" if key.required else default and f"default: {default}",
        "shared" if key.shared else "",
    ]
    first = f"{key.name}: {'; '.join(part for part in told if part)}".replace("`", "")
    lines = [fill(first, WIDTH, initial_indent=" " * 2, subsequent_indent=" " * 6)]
    if key.meaning:
        meaning = " ".join(key.meaning.split())
        lines.append(fill(meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
    return "\n".join(lines)


def _parts(cls: type[Component], prefix: str = "") -> Iterator[KeyTable]:
    """The tables of the components that are parts of this one, whatever the spec says."""
    for name, mark in fields_of(cls).items():
        if not isinstance(mark, Part) or isinstance(mark, Slot):
            continue
        rules, inner = isinstance(mark, LayerRules), mark.held_in(cls, name)
        path = f"{prefix}{name}"
        yield KeyTable(path, rules, class_doc(inner), _keys(inner, without="at" if rules else ""))
        yield from _parts(inner, f"{path}.")


def _in_a_spec(slot: str, kind: str, cls: type[Plugin]) -> str:
    """The line of a spec that asks for the component, with the values that it cannot be without."""
    marks = fields_of(cls)
    stated = {name: json.dumps(value) for name, value in cls.example.items() if name in marks}
    own = [name for name, mark in marks.items() if mark is None and name != "kind"]
    stated |= {
        name: "..." for name in own if cls.model_fields[name].is_required() and name not in stated
    }
    if slot == "builder" or not stated:
        return f'{slot} = "{kind}"'
    inside = ", ".join(f"{name} = {value}" for name, value in stated.items())
    return f'{slot} = {{ kind = "{kind}", {inside} }}'


def _keys(cls: type[Component], without: str = "") -> tuple[Key, ...]:
    """The keys that a spec can state, but for one."""
    docs = field_docs(cls)
    return tuple(
        Key(
            name,
            _value_of(cls, name, mark),
            mark is SHARED,
            cls.model_fields[name].is_required() and not isinstance(mark, Part),
            _default_of(cls, name, mark),
            docs.get(name, ""),
        )
        for name, mark in fields_of(cls).items()
        if name not in ("kind", without) and mark is not GIVEN
    )


def _value_of(cls: type[Component], name: str, mark: object) -> str:
    """What may be written for a key."""
    if isinstance(mark, Slot):
        return mark.slot
    if isinstance(mark, LayerRules):
        return "rules"
    if isinstance(mark, Part):
        return "table"
    schema, _ = plain_value(cls, name)
    return described(schema)


def _default_of(cls: type[Component], name: str, mark: object) -> str:
    """What a key is when nothing states it; empty if it is then absent, or must be stated."""
    field = cls.model_fields[name]
    if isinstance(mark, Slot):
        return f'`"{mark.default}"`' if mark.default else OF_REGISTRY
    if isinstance(mark, Part):
        return ""
    if (conditional := mark_of(field)) is not None:
        return "" if conditional.default is None else f"`{json.dumps(conditional.default)}`"
    if field.default_factory is not None:
        return "derived"
    if field.default is None or field.is_required():
        return ""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{json.dumps(default)}`"
