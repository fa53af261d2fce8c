"""The TOML of published models, as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit

from zoo.source import Source
from zoo.store.pretrained import Card, File


def card_text(card: Card, source: Source) -> str:
    """A model's file, for the folder that a registry's `catalog` names."""
    stated: dict[str, Any] = card.model_dump(exclude_defaults=True, exclude={"files"})
    return tomlkit.dumps(stated) + "\n" + source_and_files(source, card.files)


def source_and_files(source: Source, files: Mapping[str, File]) -> str:
    """The tables `[source]` and `[files]`."""
    tables = {
        "source": source.model_dump(exclude_none=True),
        "files": {path: files[path].model_dump() for path in sorted(files)},
    }
    return tomlkit.dumps(tables)
