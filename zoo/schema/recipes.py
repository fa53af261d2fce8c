"""The JSON Schema of recipes, for editors, generated from their tables. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from zoo.schema.field_docs import class_doc, field_docs
from zoo.schema.specs import DIALECT
from zoo.schema.values import Reading, Readings, Schema, by_key, merged, named, ref
from zoo.training.recipe import KINDS, OPTIONAL, TABLES
from zoo.training.tables import Head, Table


def recipe_schema() -> Schema:
    """Return the JSON Schema (2020-12) of recipes: all tables of all kinds, with descriptions."""
    classes: list[type[Table]] = [
        Head,
        *TABLES.values(),
        *OPTIONAL.values(),
        *(cls for kinds in KINDS.values() for cls in kinds.values()),
    ]
    _, made = models_json_schema(
        [(cls, "validation") for cls in classes], schema_generator=_WithMeanings
    )
    definitions: dict[str, Schema] = made["$defs"]
    head = definitions.pop(Head.__name__)
    tables: dict[str, Schema] = {
        **{name: _of_kind(name, kinds, definitions) for name, kinds in KINDS.items()},
        **{name: ref(cls.__name__) for name, cls in {**TABLES, **OPTIONAL}.items()},
    }
    optional = [name for name, cls in TABLES.items() if not definitions[cls.__name__]["required"]]
    optional += OPTIONAL
    return {
        "$schema": DIALECT,
        "title": "How a model is trained, as the zoo reads it",
        "type": "object",
        "properties": {**head["properties"], **tables},
        "required": [*head["required"], *(name for name in tables if name not in optional)],
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


class _WithMeanings(GenerateJsonSchema):
    """Adds a description to each key, and leaves out null, which TOML does not have."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        cls: type[BaseModel] = schema["cls"]
        properties = made.get("properties", {})
        for name, doc in field_docs(cls).items():
            properties[name]["description"] = doc
        del made["title"]
        return {"required": [], **made, "description": class_doc(cls)}

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if key != "default" or value is not None}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _of_kind(name: str, kinds: Mapping[str, type[Table]], definitions: dict[str, Schema]) -> Schema:
    """Return the schema of the table `name`, whose key `kind` selects its class, and add that of a
    table of any kind to `definitions`.

    As in the schema of specs, editors look for completions in `anyOf`, whose last choice accepts
    everything.
    """
    any_kind = f"any-{name}"
    readings: Readings = {}
    for kind, cls in kinds.items():
        table = definitions[cls.__name__]
        for key, value in table["properties"].items():
            readings.setdefault(key, []).append(Reading(kind, value))
        table["properties"] = {
            "kind": {"const": kind, "description": table["description"]},
            **table["properties"],
        }
    docs = {kind: class_doc(cls) for kind, cls in kinds.items()}
    words = named(docs, f"The kind of `[{name}]`.")
    definitions[any_kind] = {
        "type": "object",
        "description": f"`[{name}]`, of any kind.",
        "properties": {"kind": words, **{key: merged(found) for key, found in readings.items()}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    tables = {kind: ref(cls.__name__) for kind, cls in kinds.items()}
    return {"anyOf": [ref(any_kind), True], **by_key("kind", tables, ref(any_kind))}
