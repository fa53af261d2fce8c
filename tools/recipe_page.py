"""Write docs/recipe.md: every table of a recipe with its keys, from the schema of recipes.

python tools/recipe_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cells import cell

from zoo.schema.field_docs import class_doc
from zoo.schema.recipes import recipe_schema
from zoo.schema.words import described
from zoo.training.recipe import KINDS, OPTIONAL, TABLES

PAGE = Path(__file__).parent.parent / "docs" / "recipe.md"
HEAD = """\
# Recipes

Every key of a recipe, table by table. [Training](train.md), [Fine-tuning](fine-tune.md) and
[Training encoders and classifiers](train-encoders.md) have whole recipes.
`zoo validate recipe.toml` checks one without training, and `zoo schema recipe` prints a schema of
recipes for [editors](editor.md).

Made by `python tools/recipe_page.py` from the tables in `zoo/training/*tables.py`.

## At the top
"""


def page() -> str:
    """The page's text."""
    schema = recipe_schema()
    definitions = schema["$defs"]
    named = {**KINDS, **TABLES, **OPTIONAL}
    top = {key: value for key, value in schema["properties"].items() if key not in named}
    lines = [HEAD, *keys({**schema, "properties": top})]
    for name, kinds in KINDS.items():
        lines += ["", f"## `[{name}]`", "", "Its key `kind` says which of these it is."]
        for kind, cls in kinds.items():
            table = definitions[cls.__name__]
            lines += ["", f'### `kind = "{kind}"`', "", class_doc(cls), "", *keys(table)]
            lines += inner_tables(table, definitions)
    for name, cls in {**TABLES, **OPTIONAL}.items():
        lines += ["", f"## `[{name}]`", "", class_doc(cls), "", *keys(definitions[cls.__name__])]
    return "\n".join(lines) + "\n"


def keys(table: Mapping[str, Any]) -> list[str]:
    """The rows of a table's keys, those that must be stated first."""
    in_order = sorted(table["properties"].items(), key=lambda one: one[0] not in table["required"])
    rows = [
        f"| `{name}` | {described(value)} | {default(name, value, table)} | "
        f"{cell(value['description'])} |"
        for name, value in in_order
        if name != "kind"
    ]
    return ["| key | value | default | meaning |", "|---|---|---|---|", *rows]


def default(name: str, value: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """What a key is when nothing states it."""
    if name in table["required"]:
        return "**required**"
    return f"`{json.dumps(value['default'])}`" if "default" in value else "none"


def inner_tables(table: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    """The tables that the keys of a table may hold."""
    references = {
        choice["$ref"].rpartition("/")[2]: None
        for value in table["properties"].values()
        for choice in value.get("anyOf", [value])
        if "$ref" in choice
    }
    for name in references:
        yield from ("", f"A table there: {definitions[name]['description']}", "")
        yield from keys(definitions[name])


if __name__ == "__main__":
    PAGE.write_text(page())
