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
from zoo.wording import did_you_mean, quoted


def published(name: str, registry: Registry) -> Pretrained:
    """Return the published model of a name. Raises `StoreError` with the nearest name if there is
    none."""
    model = find_pretrained(name, registry)
    if model is None:
        bare, at, version = name.partition("@")
        if at:
            hint = f"the registry states the version of {bare}: leave out {quoted(at + version)}"
        else:
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
    if "@" not in name:
        model = with_trusted(published(name, registry), store, registry)
        ref = read_ref(store, model.name, model.version) if model.is_pinned else None
        return ref if ref is not None and is_of(ref, model) else None
    found = [read_ref(store, *one) for one in stored_versions(name, registry, store)]
    if not found or found[0] is None:
        bare, _, version = name.partition("@")
        hint = _listed(stored_versions(bare, registry, store))
        hint = hint or f"`zoo pull {bare}` brings the one that is published"
        message = f"the store has no version {quoted(version)} of {quoted(bare)}"
        raise StoreError(Problem(message, help=hint))
    return found[0]


def find_stored(name: str, registry: Registry, store: Store) -> Ref | None:
    """Return the ref of a name, or None if its weights are not in the store. Raises as
    `find_ref`."""
    ref = find_ref(name, registry, store)
    return ref if ref is not None and exists(weights_path(restored(store, ref))) else None


def stored_versions(name: str, registry: Registry, store: Store) -> list[tuple[str, str]]:
    """Return the names and versions of a model in the store, without reading their refs: all for
    `name`, and for `name@version` the one that begins with `version`, if there is one. A name out
    of use gives a `DeprecatedName` warning.

    Raises:
        StoreError: several versions begin so, or nothing follows the `@`.
    """
    name, at, start = name.partition("@")
    warn_if_out_of_use(name, registry)
    there = versions(store, registry.catalog.full_name(name))
    found = [one for one in there if one[1].startswith(start)]
    if at and not start:
        hint = f"for any version: {quoted(name)}"
        raise StoreError(Problem(f"there is no version after the `@` of `{name}@`", help=hint))
    if at and len(found) > 1:
        message = f"the store has several versions {quoted(start)} of {quoted(name)}"
        raise StoreError(Problem(message, help=_listed(found)))
    return found


def _listed(found: list[tuple[str, str]]) -> str | None:
    """Return a help text that lists versions; None if there are none."""
    return f"in the store: {', '.join(quoted(version) for _, version in found)}" if found else None
