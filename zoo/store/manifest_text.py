"""Write the TOML of published models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit

from zoo.source import Source
from zoo.store.pretrained import File, Manifest


def manifest_text(manifest: Manifest, source: Source) -> str:
    """Return the text of a model's file, for the `catalog` folder of a registry."""
    stated: dict[str, Any] = manifest.model_dump(exclude_defaults=True, exclude={"files"})
    return tomlkit.dumps(stated) + "\n" + source_and_files(source, manifest.files)


def source_and_files(source: Source, files: Mapping[str, File]) -> str:
    """Return the text of the tables `[source]` and `[files]`."""
    tables = {
        "source": source.model_dump(exclude_none=True),
        "files": {path: files[path].model_dump() for path in sorted(files)},
    }
    return tomlkit.dumps(tables)
