"""JSON Schemas of single keys, and the merging of those of a key that several components read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, TypeAdapter, WrapValidator
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticUndefined

from zoo.component import Component

Schema = dict[str, Any]


class Reading(NamedTuple):
    """The name of a component that reads a key, the schema of the values that it accepts, and
    whether these may differ between the layers of a stack."""

    owner: str
    schema: Schema
    per_layer: bool = False


Readings = dict[str, list[Reading]]


@cache
def plain_value(cls: type[Component], name: str) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of a key that holds a plain value, and the definitions that it refers to.
    Both are empty where a validator of the plugin decides which values are valid."""
    if _is_rewritten(cls, name):
        return {}, {}
    field = cls.model_fields[name]
    described: Any = field.annotation
    for mark in field.metadata:
        described = Annotated[described, mark]
    prefix = f"{cls.__name__}.{name}"
    try:
        schema = TypeAdapter(described).json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    except PydanticUserError:
        return {}, {}
    definitions = {f"{prefix}.{key}": value for key, value in schema.pop("$defs", {}).items()}
    schema = _without_null(schema)
    if isinstance(field.default, bool | int | float | str):
        schema["default"] = field.default
    elif isinstance(field.default, tuple):
        schema["default"] = list(field.default)
    return schema, definitions


def ref(name: str) -> Schema:
    """Return a reference to this name in `$defs`."""
    return {"$ref": f"#/$defs/{name}"}


def named(docs: Mapping[str, str], description: str) -> Schema:
    """Return the schema of one of these names, with their descriptions in the format of taplo."""
    enum_values = {"enumValues": list(docs.values())}
    return {"enum": list(docs), "description": description, "x-taplo": {"docs": enum_values}}


def by_key(key: str, tables: Mapping[str, Schema], otherwise: Schema) -> Schema:
    """Return the schema of a table whose `key` selects one of `tables`.

    It is a chain of ifs, so that errors name the key that is wrong; for an `anyOf`, a checker would
    report the errors of every choice.
    """
    schema = otherwise
    for name, table in tables.items():
        is_named = {"properties": {key: {"const": name}}, "required": [key]}
        schema = {"if": is_named, "then": table, "else": schema}
    return schema


def merged(readings: list[Reading]) -> Schema:
    """Return one schema for a key that several components read: any value that one accepts."""
    choices: list[Schema] = []
    owners: dict[str, list[str]] = {}
    for owner, read, _ in readings:
        doc = read.get("description")
        if doc is not None and owner not in owners.setdefault(doc, []):
            owners[doc].append(owner)
        bare = {key: value for key, value in read.items() if key not in ("description", "default")}
        if bare not in choices:
            choices.append(bare)
    schema: Schema = dict(choices[0]) if len(choices) == 1 else {"anyOf": choices}
    if owners:
        schema["description"] = _description(owners)
    defaults = [reading.schema.get("default") for reading in readings]
    if defaults[0] is not None and defaults == defaults[:1] * len(defaults):
        schema["default"] = defaults[0]
    return schema


def for_each_layer(key: str, schema: Schema) -> Schema:
    """Return the schema of a value, or of a table whose `key` has one value for each layer."""
    doc = "The value for each layer of the stack, from the first."
    values = {"type": "array", "items": schema, "minItems": 1, "description": doc}
    return {
        "anyOf": [schema, True],  # where editors look for completions
        "if": {"type": "object", "required": [key]},
        "then": {"properties": {key: values}, "additionalProperties": False},
        "else": schema,
    }


def _description(owners: Mapping[str, list[str]]) -> str:
    if len(owners) == 1:
        return next(iter(owners))
    return "\n\n".join(f"`{'`, `'.join(names)}`: {doc}" for doc, names in owners.items())


def _without_null(schema: Schema) -> Schema:
    """Remove null, which TOML does not have: an absent key means None."""
    choices: list[Schema] = schema.get("anyOf", [])
    kept = [choice for choice in choices if choice != {"type": "null"}]
    if len(kept) == 1:
        return {**{key: value for key, value in schema.items() if key != "anyOf"}, **kept[0]}
    return {**schema, "anyOf": kept} if kept else schema


def _is_rewritten(cls: type[Component], name: str) -> bool:
    """Return whether a validator of the plugin changes the value before its type is checked,
    without declaring the values that it accepts."""
    decorators = cls.__pydantic_decorators__
    before = [
        mark.json_schema_input_type
        for mark in cls.model_fields[name].metadata
        if isinstance(mark, BeforeValidator | WrapValidator)
    ]
    before += [
        found.info.json_schema_input_type
        for found in decorators.field_validators.values()
        if name in found.info.fields and found.info.mode in ("before", "wrap")
    ]
    whole = [found.info.mode for found in decorators.model_validators.values()]
    return PydanticUndefined in before or "before" in whole or "wrap" in whole
