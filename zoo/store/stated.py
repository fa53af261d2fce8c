"""Compare a model in the store with what the registry states. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from zoo.bundle import is_weights
from zoo.errors import WeightsError
from zoo.registry import Registry
from zoo.store.collecting import restored
from zoo.store.files import Store, damaged
from zoo.store.first_use import with_trusted
from zoo.store.pretrained import File, Pretrained, find_pretrained
from zoo.store.refs import Ref
from zoo.weights.file import weights_path
from zoo.weights.reader import open_weights


def stated_now(ref: Ref, registry: Registry, store: Store) -> Pretrained | None:
    """Return the model that the registry states under the name of a ref, which may be another
    version; None if there is none, or if its digests are not known.

    Raises:
        RegistryError: the model's file cannot be read or is wrong.
    """
    model = find_pretrained(ref.name, registry)
    model = None if model is None else with_trusted(model, store, registry)
    return model if model is not None and model.is_pinned else None


def is_of(ref: Ref, model: Pretrained) -> bool:
    """Return whether the digests in a ref are those that the registry states. Reads no file."""
    digest = model.manifest.content_digest
    return ref.files == _files(ref, model) and digest in (None, ref.content_digest)


def not_as_stated(
    ref: Ref,
    model: Pretrained | None,
    store: Store,
    on_bytes: Callable[[int], None] = lambda n: None,
) -> tuple[str, ...]:
    """Return the files of a model in the store that are missing, surplus, or not as the registry
    states; for a version of which it states nothing, not as in the ref.

    Args:
        ref: the model in the store.
        model: states the same version; None if no registry does.
        store: the store.
        on_bytes: called with the number of bytes read since the last call.

    Raises:
        StoreError: there is no permission to read one.
    """
    folder = restored(store, ref)
    files = ref.files if model is None else _files(ref, model)
    wrong = tuple(damaged(folder, files, on_bytes))
    if wrong or model is None or _has_stated_tensors(folder, model):
        return wrong
    return (weights_path(folder).name,)


def _files(ref: Ref, model: Pretrained) -> Mapping[str, File]:
    """Return what the files in the store must be. Of an imported model, the weights are those of
    the ref, since the registry states the published ones, and the others are published files."""
    stated = model.manifest.files
    if model.manifest.family is None:
        return stated
    made = {path: file for path, file in ref.files.items() if is_weights(path)}
    copied = {path: stated[path] for path in ref.files.keys() & stated.keys() - made.keys()}
    return made | copied


def _has_stated_tensors(folder: Path, model: Pretrained) -> bool:
    """Return whether the tensors have the content digest that the registry states, if any."""
    digest = model.manifest.content_digest
    if digest is None:
        return True
    try:
        with open_weights(folder) as weights:
            header = weights.header
            if header.content_digest != digest:
                return False
            # Of published weights, the registry states the SHA-256 of every byte.
            return model.manifest.family is None or not weights.changed(header.records)
    except WeightsError:
        return False
