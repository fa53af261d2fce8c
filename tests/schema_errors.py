"""Where a JSON Schema finds a mistake."""

from __future__ import annotations

from jsonschema_rs import ValidationError


def place(error: ValidationError) -> str:
    """The path to the value, as JSONPath writes it: `$.decoder.layers[0]`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    return "$" + "".join(steps)
