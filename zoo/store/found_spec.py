"""Find the spec that a path or a name refers to. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.reading import read_spec, spec_of_weights
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.wording import PATH, quoted

if TYPE_CHECKING:
    from zoo.weights.file import Header


def read_source(
    source: str, registry: Registry, *, pulls: bool = False
) -> tuple[ModelSpec, Header | None]:
    """Read the spec of a spec file, a registered model, a weights file or its folder, or a
    published model; for weights, also return their header.

    Args:
        source: its path or name.
        registry: where names are looked up.
        pulls: whether a published model that is not in the store is pulled, instead of an error.

    Raises:
        ZooError: as `read_spec`, and `WeightsError` for a damaged weights file.
    """
    path = Path(source)
    if source not in registry.models and not os.path.exists(path):
        path = _stored(source, registry, pulls) or path
    if path.suffix.lower() != ".safetensors" and not os.path.isdir(path):
        return read_spec(source, registry=registry), None
    from zoo.weights.file import weights_path
    from zoo.weights.reader import read_header

    folder, path = path, weights_path(path)
    if path != folder and not os.path.exists(path):
        return read_spec(source, registry=registry), None
    header = read_header(path)
    return spec_of_weights(header, str(path), registry), header


def _stored(name: str, registry: Registry, pulls: bool) -> Path | None:
    """Return the folder of a published model in the store; None if there is no such name.

    Raises:
        StoreError: it is not in the store, and is not pulled.
    """
    if registry.catalog.file(name.partition("@")[0]) is None:
        return None
    if pulls:
        from zoo.store.found_weights import find_weights

        return find_weights(name, registry).path.parent
    from zoo.store.files import Store, StoreError
    from zoo.store.lookup import find_stored

    store = Store.default()
    ref = find_stored(name, registry, store)
    if ref is None:
        hint = f"`zoo pull {name}` brings it there"
        raise StoreError(f"{quoted(name, PATH)} is not in the store", help=hint)
    return store.snapshot(ref.files)
