"""Resolve a name to the files of a model, which are pulled if they are not in the store."""

from __future__ import annotations

from pathlib import Path

from zoo.registry import Registry
from zoo.store.files import Store
from zoo.store.lookup import find_stored
from zoo.store.refs import Ref


def resolve(name: str, registry: Registry) -> tuple[Path, Ref]:
    """Return the folder with the files of a published model, and its ref. The model is pulled first
    if it is not in the store. A model in the store needs no request.

    Args:
        name: the name of a published model, or an alias; or `name@version`, with a version or the
            start of one that must be in the store.
        registry: has the files of published models.

    Raises:
        StoreError: there is no such model or version, or its digests are not known and it was never
            trusted.
        SourceError: it is not in the store and not available.
    """
    store = Store.default()
    ref = find_stored(name, registry, store)
    if ref is None:
        from zoo.store.pulling import pull  # which imports the modules that fetch and write

        ref = pull(name, registry, store)
    return store.snapshot(ref.files), ref
