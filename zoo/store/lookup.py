"""Resolve a name to a ref in the store."""

from __future__ import annotations

from zoo.errors import Problem
from zoo.files.hints import of_no_model
from zoo.registry import Registry
from zoo.store.collecting import restored
from zoo.store.files import Store, StoreError, exists
from zoo.store.first_use import with_trusted
from zoo.store.pretrained import Pretrained, find_pretrained, warn_if_out_of_use
from zoo.store.refs import Ref, read_ref, versions
from zoo.store.stated import is_of
from zoo.weights.file import weights_path
from zoo.wording import PATH, quoted


def published(name: str, registry: Registry) -> Pretrained:
    """Return the published model of a name, whatever version is behind it. Raises `StoreError` with
    the nearest name if there is none."""
    model = find_pretrained(name.partition("@")[0], registry)
    if model is None:
        hint = of_no_model(name, registry.catalog.known())
        message = f"there is no published model {quoted(name, PATH)}"
        raise StoreError(Problem(message, help=hint, related=registry.perhaps_missing()))
    return model


def bare_and_version(name: str) -> tuple[str, str | None]:
    """Return the parts of `name@version`; no version for a bare name. Raises `StoreError` if
    nothing follows the `@`."""
    bare, at, version = name.partition("@")
    if at and not version:
        hint = f"for any version: {quoted(bare)}"
        raise StoreError(f"there is no version after the `@` of `{name}`", help=hint)
    return bare, version or None


def find_ref(name: str, registry: Registry, store: Store) -> Ref | None:
    """Return the ref of `name`, or of `name@version` with the start of a version; None if the
    registry states such a version, and the store does not have it.

    Raises:
        StoreError: there is no such model, or that version of it is neither in the store nor the
            one that the registry states.
    """
    bare, version = bare_and_version(name)
    if version is not None:
        for one in stored_versions(name, registry, store):
            if (ref := read_ref(store, *one)) is not None:
                return ref
    model = with_trusted(published(name, registry), store, registry)
    if version is None:
        ref = read_ref(store, model.name, model.version) if model.is_pinned else None
        return ref if ref is not None and is_of(ref, model) else None
    if not model.has_version(version):
        hint = _listed(stored_versions(bare, registry, store))
        hint = hint or f"`zoo pull {bare}` brings the one that is published"
        message = f"the store has no version {quoted(version)} of {quoted(bare)}"
        raise StoreError(message, help=hint)
    return None


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
    name, start = bare_and_version(name)
    warn_if_out_of_use(name, registry)
    there = versions(store, registry.catalog.full_name(name))
    if start is None:
        return list(there)
    found = [one for one in there if one[1].startswith(start)]
    if len(found) > 1:
        message = f"the store has several versions {quoted(start)} of {quoted(name)}"
        raise StoreError(message, help=_listed(found))
    return found


def _listed(found: list[tuple[str, str]]) -> str | None:
    """Return a help text that lists versions; None if there are none."""
    return f"in the store: {', '.join(quoted(version) for _, version in found)}" if found else None
