"""A spec from wherever it is: a file, a registered name, text, or data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.document import Document, from_data, parse, read_document
from zoo.errors import Problem, SpecError, did_you_mean, quoted
from zoo.registry import Registry, load_registry
from zoo.resolve import resolve
from zoo.spec import ModelSpec
from zoo.validate import validate


def read_spec(
    source: str | Path | Mapping[str, Any], *, registry: Registry | None = None
) -> ModelSpec:
    """Read, resolve and validate a spec. Imports no torch.

    Args:
        source: a `.toml` file, the name of a registered model, TOML text (a string of more than
            one line), or plain data.
        registry: where names are looked up; the layers around the working directory unless given.

    Raises:
        SpecError: every problem found, each with its place.
        RegistryError: a registry is malformed.
        PluginError: a plugin that the spec names cannot be loaded.
    """
    registry = load_registry() if registry is None else registry
    return validate(resolve(_document(source, registry), registry))


def _document(source: str | Path | Mapping[str, Any], registry: Registry) -> Document:
    if isinstance(source, Mapping):
        return from_data(dict(source), "<data>")
    if isinstance(source, str) and "\n" in source:
        return parse(source, "<text>")
    if isinstance(source, str) and source in registry.models:
        entry = registry.models[source]
        return read_document(entry.folder / entry.target)
    path = Path(source)
    if not path.exists() and path.suffix != ".toml":
        raise SpecError(
            Problem(
                f"there is no file and no model {quoted(source)}",
                help=did_you_mean(str(source), registry.models),
            )
        )
    return read_document(path)
