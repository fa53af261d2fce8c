"""Resolve a name to a ref in the store."""

from __future__ import annotations

from zoo.errors import Problem
from zoo.registry import Registry
from zoo.store.collecting import restored
from zoo.store.files import Store, StoreError, exists
from zoo.store.first_use import with_trusted
from zoo.store.pretrained import Pretrained, find_pretrained, warn_if_out_of_use
from zoo.store.refs import Ref, read_ref, versions
from zoo.store.stated import is_of
from zoo.weights.file import weights_path
from zoo.wording import allowed, did_you_mean, quoted


def published(name: str, registry: Registry) -> Pretrained:
    """Return the published model of a name. Raises `StoreError` with the nearest name if there is
    none."""
    model = find_pretrained(name, registry)
    if model is None:
        known = registry.catalog.known()
        hint = did_you_mean(name, known, "`zoo list models` lists the models")
        raise StoreError(Problem(f"there is no published model {quoted(name)}", help=hint))
    return model


def find_ref(name: str, registry: Registry, store: Store) -> Ref | None:
    """Return the ref of `name`, or of `name@version` with the start of a version; None if the
    model of a bare name is not in the store as the registry states it.

    Raises:
        StoreError: there is no such model, or not that version of it.
    """
    name, _, version = name.partition("@")
    if not version:
        model = with_trusted(published(name, registry), store, registry)
        ref = read_ref(store, model.name, model.version) if model.is_pinned else None
        return ref if ref is not None and is_of(ref, model) else None
    found = stored(f"{name}@{version}", registry, store)
    if len(found) != 1:
        wrong = "several versions" if found else "no version"
        known = [ref.version for ref in stored(name, registry, store)]
        message = f"the store has {wrong} {quoted(version)} of {quoted(name)}"
        hint = allowed(known) if known else f"`zoo pull {name}` brings the one that is published"
        raise StoreError(Problem(message, help=hint))
    return found[0]


def find_stored(name: str, registry: Registry, store: Store) -> Ref | None:
    """Return the ref of a name, or None if its weights are not in the store. Raises as
    `find_ref`."""
    ref = find_ref(name, registry, store)
    return ref if ref is not None and exists(weights_path(restored(store, ref))) else None


def stored(name: str, registry: Registry, store: Store) -> list[Ref]:
    """Return the refs of a model in the store: all for `name`, and for `name@version` those of the
    versions that begin with `version`. A name out of use gives a `DeprecatedName` warning.

    Raises:
        StoreError: one of them is damaged.
    """
    found = (read_ref(store, *version) for version in stored_versions(name, registry, store))
    return [ref for ref in found if ref is not None]


def stored_versions(name: str, registry: Registry, store: Store) -> list[tuple[str, str]]:
    """Return the names and versions of what `stored` returns, without reading the refs."""
    name, _, start = name.partition("@")
    warn_if_out_of_use(name, registry)
    full = registry.catalog.full_name(name)
    return [(of, version) for of, version in versions(store, full) if version.startswith(start)]
