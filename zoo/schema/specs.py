"""The JSON Schema of specs, for editors: the keys of each table with the installed plugins.

It is generated from the descriptions alone, following the rules of `zoo.resolve`: a table holds the
keys of its own component, and those that components inside it take from the tables around them. It
accepts every valid spec. It also accepts specs whose errors depend on values, such as a width that
is not divisible by the number of heads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from zoo.component import (
    GIVEN,
    SHARED,
    Component,
    LayerRules,
    Part,
    Slot,
    fields_of,
    layer_rules_of,
)
from zoo.errors import Problem, ZooError
from zoo.extends import NAME_PATTERN
from zoo.registry import Registry
from zoo.resolving.layer_rules import SELECTORS, START
from zoo.resolving.tables import PER_LAYER
from zoo.schema.field_docs import class_doc, field_docs
from zoo.schema.values import (
    Reading,
    Readings,
    Schema,
    by_key,
    for_each_layer,
    merged,
    named,
    plain_value,
    ref,
)
from zoo.slots import Plugin
from zoo.spec import FORMAT

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SPEC_NAME = f"^{NAME_PATTERN.pattern}$"

_COUNT: Schema = {"type": "integer", "minimum": 1}
_RULE_KEYS: Mapping[str, Schema] = {
    "every": {**_COUNT, "description": "Each n-th layer: the n-th, the 2n-th, and so on."},
    "start": {
        "type": "integer",
        "minimum": 0,
        "description": "With `every`: the first layer meant, counted from 0.",
    },
    "first": {**_COUNT, "description": "That many layers at the start."},
    "last": {**_COUNT, "description": "That many layers at the end."},
    "at": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0},
        "minItems": 1,
        "uniqueItems": True,
        "description": "The numbers of the layers, from 0.",
    },
}
_ROOT_KEYS: Mapping[str, Schema] = {
    "format": {"const": FORMAT, "description": "The version of the spec format."},
    "name": {"type": "string", "pattern": _SPEC_NAME, "description": "The model's name."},
    "extends": {
        "type": "string",
        "pattern": _SPEC_NAME,
        "description": "A spec file beside this one, without its ending, a registered model, or a "
        "saved model beside this file: what it says holds unless it is said here.",
    },
}


def spec_schema(registry: Registry) -> tuple[Schema, list[Problem]]:
    """Return the JSON Schema (2020-12) of specs and a problem for each plugin that cannot be
    loaded, whose table may hold any keys."""
    made = _Schemas(registry)
    return made.spec(), made.problems


def schema_text(schema: Schema) -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


class _Schemas:
    """One run over the registry. `definitions` is filled as tables are referenced."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.problems: list[Problem] = []
        self.definitions: dict[str, Schema] = {}
        self.names: dict[type[Component], str] = {}
        self.numbers: dict[str, int] = {}

    def spec(self) -> Schema:
        stated = ["format", "name", "builder"]
        table = self.by_kind("builder", "builder")
        return {
            "$schema": DIALECT,
            "title": "A Transformer, as the zoo builds it",
            "type": "object",
            "anyOf": [self.any_kind("builder"), True],
            "if": {"anyOf": [{"required": ["extends"]}, {"required": stated}]},
            "then": table,
            "else": {"required": stated},
            "$defs": dict(sorted(self.definitions.items())),
        }

    # --- slots and tables -----------------------------------------------------------------------

    def slot(self, slot: str) -> Schema:
        """Return a reference to the schema of a slot: the name of a kind, or a table."""

        def choice() -> Schema:
            return {
                "description": f"What fills the slot `{slot}`: a kind, or a table.",
                # Editors look for completions in `anyOf`, whose last choice accepts everything.
                "anyOf": [self.kinds(slot), self.any_kind(slot), True],
                "if": {"type": "string"},
                "then": {"enum": list(self.registry.plugins[slot])},
                "else": self.by_kind(slot, "kind"),
            }

        return self.defined(slot, choice)

    def kinds(self, slot: str) -> Schema:
        """Return the schema of the names of the kinds."""
        docs = {kind: _doc(self.load(slot, kind)) for kind in self.registry.plugins[slot]}
        return named(docs, f"The kind that fills the slot `{slot}`.")

    def any_kind(self, slot: str) -> Schema:
        """Return a reference to the table of unspecified kind: the keys of all kinds."""

        def table() -> Schema:
            readings: Readings = {}
            for kind in self.registry.plugins[slot]:
                if cls := self.load(slot, kind):
                    _add(readings, self.keys(cls, kind))
            head = self.head(slot, self.kinds(slot))
            return self.table(readings, head, f"What fills the slot `{slot}`, of any kind.")

        return self.defined(f"any-{slot}", table)

    def by_kind(self, slot: str, key: str) -> Schema:
        """Return the table of the kind that `key` names, or of any kind if `key` is absent."""
        tables = {kind: self.plugin(slot, kind) for kind in self.registry.plugins[slot]}
        return by_key(key, tables, self.any_kind(slot))

    def plugin(self, slot: str, kind: str) -> Schema:
        """Return a reference to the table of one kind."""

        def table() -> Schema:
            cls = self.load(slot, kind)
            head = self.head(slot, {"const": kind, "description": _doc(cls)})
            if cls is None:
                return {"type": "object", "properties": head}
            return self.table(self.keys(cls, kind), head, class_doc(cls))

        return self.defined(f"{slot}.{kind}", table)

    def head(self, slot: str, kind: Schema) -> Mapping[str, Schema]:
        return {**_ROOT_KEYS, "builder": kind} if slot == "builder" else {"kind": kind}

    def part(self, cls: type[Component]) -> Schema:
        """Return a reference to the table of a component with a fixed class."""

        def table() -> Schema:
            return self.table(self.keys(cls, cls.__name__), {}, class_doc(cls))

        return self.defined(f"part-{self.name_of(cls)}", table)

    def rule(self, cls: type[Component]) -> Schema:
        """Return a reference to the table of one rule for single layers."""

        def table() -> Schema:
            return {
                **self.table(self.keys(cls, cls.__name__), _RULE_KEYS, class_doc(cls)),
                "oneOf": [{"required": [key]} for key in SELECTORS],
                "dependentRequired": {START: ["every"]},
            }

        return self.defined(f"rule-{self.name_of(cls)}", table)

    def table(self, readings: Readings, head: Mapping[str, Schema], description: str) -> Schema:
        """Return the schema of a table with these keys and no others."""
        read = {key: self.of_key(found) for key, found in readings.items() if key not in head}
        return {
            "type": "object",
            "description": description,
            "properties": {**read, **head},
            "additionalProperties": False,
        }

    def of_key(self, readings: list[Reading]) -> Schema:
        """Return the schema of a key. One that may differ between layers is a definition, since
        many keys take the same values."""
        schema = merged(readings)
        told: Schema = {key: schema.pop(key) for key in ("description", "default") if key in schema}
        if schema and any(reading.per_layer for reading in readings):
            number = self.numbers.setdefault(repr(schema), len(self.numbers))
            choice = for_each_layer(PER_LAYER, schema)
            schema = self.defined(f"per-layer-{number}", lambda: choice)
        return {**schema, **told}

    def defined(self, name: str, make: Callable[[], Schema]) -> Schema:
        """Return a reference to a definition, which is made at the first call for its name."""
        if name not in self.definitions:
            self.definitions[name] = {}  # a component may contain itself
            self.definitions[name] = make()
        return ref(name)

    def name_of(self, cls: type[Component]) -> str:
        """Return the name of a class, with a number if another class has the same name."""
        if cls not in self.names:
            same = sum(known.__name__ == cls.__name__ for known in self.names)
            self.names[cls] = f"{cls.__name__}-{same + 1}" if same else cls.__name__
        return self.names[cls]

    # --- the keys of a table --------------------------------------------------------------------

    def keys(self, cls: type[Component], owner: str) -> Readings:
        """Return the readers of each key of a component's table: the component itself, or otherwise
        the components inside it that take the key from tables around them."""
        own: Readings = {}
        for name, mark in fields_of(cls).items():
            if name == "kind" or mark is GIVEN:
                continue
            reading = self.reading(cls, name, mark, owner)
            keys = [mark.slot, name] if isinstance(mark, Slot) and mark.inherit else [name]
            _add(own, {key: [reading] for key in keys})
        inner: Readings = {}
        for inside, kind in self.inside(cls, {cls: owner}).items():
            for name, mark in fields_of(inside).items():
                if mark is SHARED or (isinstance(mark, Slot) and mark.inherit):
                    reading = self.reading(inside, name, mark, kind)
                    keys = [mark.slot, name] if isinstance(mark, Slot) else [name]
                    _add(inner, {key: [reading] for key in keys})
        return {**own, **{key: value for key, value in inner.items() if key not in own}}

    def inside(
        self, cls: type[Component], found: dict[type[Component], str]
    ) -> dict[type[Component], str]:
        """Add every component that `cls` may contain to `found`, which maps each to its name."""
        for child, name in self.children(cls):
            if child not in found:
                found[child] = name
                self.inside(child, found)
        return found

    def children(self, cls: type[Component]) -> Iterator[tuple[type[Component], str]]:
        for name, mark in fields_of(cls).items():
            if isinstance(mark, Slot):
                for kind in self.registry.plugins[mark.slot]:
                    if plugin := self.load(mark.slot, kind):
                        yield plugin, kind
            elif isinstance(mark, Part):
                part = mark.held_in(cls, name)
                yield part, part.__name__

    @cached_property
    def of_layers(self) -> set[type[Component]]:
        """The classes whose values may differ between the layers of a stack."""
        builders = (self.load("builder", kind) for kind in self.registry.plugins["builder"])
        found: dict[type[Component], str] = {}
        for builder in filter(None, builders):
            for inside in self.inside(builder, {builder: ""}):
                if rules := layer_rules_of(inside):
                    found[rules.group] = ""
                    self.inside(rules.group, found)
        return set(found)

    def reading(self, cls: type[Component], name: str, mark: object, owner: str) -> Reading:
        """Return what a component reads from one key."""
        rules = layer_rules_of(cls)
        stands_for_layers = rules is not None and name in fields_of(rules.group)
        per_layer = stands_for_layers or cls in self.of_layers
        return Reading(owner, self.value(cls, name, mark), per_layer)

    def value(self, cls: type[Component], name: str, mark: object) -> Schema:
        """Return the schema of the value of one key of a component."""
        if isinstance(mark, Slot):
            schema = self.slot(mark.slot)
        elif isinstance(mark, LayerRules):
            schema = {"type": "array", "items": self.rule(mark.group)}
        elif isinstance(mark, Part):
            schema = self.part(mark.held_in(cls, name))
        else:
            schema, definitions = plain_value(cls, name)
            self.definitions |= definitions
        doc = field_docs(cls).get(name)
        return {**schema, "description": doc} if doc else schema

    def load(self, slot: str, kind: str) -> type[Plugin] | None:
        """Return the class of a plugin; None, and record the problem, if it cannot be loaded."""
        try:
            return self.registry.plugin(slot, kind)
        except ZooError as error:
            self.problems += [problem for problem in error.problems if problem not in self.problems]
            return None


def _doc(cls: type[Component] | None) -> str:
    return class_doc(cls) if cls is not None else "This plugin cannot be loaded."


def _add(readings: Readings, more: Readings) -> None:
    for key, found in more.items():
        readings.setdefault(key, []).extend(found)
