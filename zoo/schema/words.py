"""Values in words, for people who read what a key may be; literals stand between backticks."""

from __future__ import annotations

import json
from typing import Any


def described(schema: dict[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        return "table"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(described(choice) for choice in schema[key]))
    if "prefixItems" in schema:
        items = schema["prefixItems"]
        return f"list of {len(items)}, each {described({'anyOf': items})}"
    if schema.get("type") == "array":
        return f"list of {described(schema.get('items', {}))}"
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = {word: schema[key] for key, word in bounds.items() if key in schema}
    told = [f"{word} {n if isinstance(n, int) else f'{n:g}'}" for word, n in limits.items()]
    kind = str(schema.get("type", "as in the meaning"))
    return f"{kind} {' and '.join(told)}" if told else kind
