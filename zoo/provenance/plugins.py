"""The plugins that a spec uses, and the distribution and version, or file, of each."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zoo
from zoo.component import Component
from zoo.document import read_document
from zoo.registry import Registry, shipped_registry
from zoo.showing.children import children
from zoo.slots import SLOTS, Plugin, slot_of
from zoo.spec import ModelSpec


def plugin_versions(spec: ModelSpec) -> dict[str, str]:
    """Return each plugin that a spec uses, as `slot.kind`, with its distribution and version, or
    the SHA-256 of its file, if no release holds that."""
    plugins, shipped = dict(_plugins(spec.model)), _shipped_packages()
    return {name: _origin(plugins[name], shipped) for name in sorted(plugins)}


def made_by(spec: ModelSpec, origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a file of weights says of how they were made: the version of the zoo, the plugins
    and, of weights that the zoo did not initialise, their origin."""
    found = {"zoo": zoo.__version__, "plugins": plugin_versions(spec)}
    return found if origin is None else {**found, "origin": origin}


class ReplacedPluginWarning(UserWarning):
    """Weights were made with other code of a plugin, and it may compute something else with
    them."""


class Replaced(NamedTuple):
    """A plugin that differs from the one that weights were made with; `made_with` is None if the
    weights have no record of it."""

    plugin: str
    made_with: str | None
    now: str


def replaced_plugins(spec: ModelSpec, made_with: Mapping[str, str]) -> list[Replaced]:
    """Return the plugins of a spec that differ from those in the header of its weights. They can
    build the model, but may compute something else with its weights."""
    found = ((name, made_with.get(name), now) for name, now in plugin_versions(spec).items())
    return [Replaced(*one) for one in found if one[1] != one[2]]


def replaced_code(spec: ModelSpec, made_with: Mapping[str, str]) -> list[str]:
    """Return the names of those plugins, without what another version of the zoo has replaced: its
    components compute what they did."""
    return [
        one.plugin
        for one in replaced_plugins(spec, made_with)
        if one.made_with is not None
        and not (one.made_with.startswith("zoo ") and one.now.startswith("zoo "))
    ]


def changed_plugins(registry: Registry, made_with: Mapping[str, str]) -> list[str]:
    """Return the plugins, as `slot.kind`, that differ from those in the header of weights, among
    those that were used; none if one of them is not registered."""
    found: list[str] = []
    shipped = _shipped_packages()
    for name, before in made_with.items():
        slot, _, kind = name.partition(".")
        if kind not in registry.plugins.get(slot, {}):
            return []
        cls = registry.loaded(slot, kind)
        if cls is not None and _origin(cls, shipped) != before:
            found.append(name)
    return found


def _plugins(component: Component) -> Iterator[tuple[str, type[Plugin]]]:
    if isinstance(component, Plugin):
        yield f"{slot_of(component)}.{component.kind}", type(component)
    for child in children(component):
        yield from _plugins(child.component)


@cache
def _shipped_packages() -> frozenset[str]:
    tables = read_document(shipped_registry()).data
    targets = (target for slot in SLOTS for target in tables.get(slot, {}).values())
    return frozenset(target.partition(".")[0] for target in targets)


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by package; this takes a tenth of a second."""
    from importlib.metadata import packages_distributions

    return packages_distributions()


def _is_editable(distribution: str) -> bool:
    """Whether a distribution is the folder that its author works in (PEP 610), where code changes
    and the version stays."""
    from importlib.metadata import distribution as installed

    about = json.loads(installed(distribution).read_text("direct_url.json") or "{}")
    return bool(about.get("dir_info", {}).get("editable"))


def _origin(cls: type[Plugin], shipped: frozenset[str]) -> str:
    from importlib.metadata import version

    package = cls.__module__.partition(".")[0]
    if package in shipped:
        return f"zoo {zoo.__version__}"
    owners = _distributions().get(package)
    if owners and not _is_editable(owners[0]):
        return f"{owners[0]} {version(owners[0])}"
    # Imported here, since it imports stevedore, as loading a plugin does.
    from zoo.registering.plugin_loading import SHA256

    module = vars(sys.modules[cls.__module__])
    found = module.get(SHA256) or hashlib.sha256(Path(module["__file__"]).read_bytes()).hexdigest()
    return f"sha256:{found}"
