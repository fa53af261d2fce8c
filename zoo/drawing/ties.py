"""Find the parts of a model that share tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zoo.component import Component
from zoo.drawing.components import layout_names
from zoo.drawing.figure import Tie
from zoo.layout import LayerList, Layout, Tensor
from zoo.showing.children import children

if TYPE_CHECKING:
    from zoo.spec import ModelSpec


def ties_of(spec: ModelSpec) -> tuple[Tie, ...]:
    """Return the ties of a spec, but for those of layers with one another, which are noted beside
    the layers; those between the same parts are merged into one."""
    if not spec.ties:
        return ()
    of_layers = {name for pair in spec.layout.ties_inside() for name in pair}
    modules = dict(_modules(spec.model, "", "", spec.layout))
    found: dict[tuple[str, ...], list[str]] = {}
    for target, aliases in spec.aliases.items():
        if target in of_layers:
            continue
        paths = {_owner(name, modules) for name in (target, *aliases)}
        found.setdefault(tuple(sorted(paths)), []).append(target)
    return tuple(
        Tie(targets[0] if len(targets) == 1 else f"{len(targets):,} tensors", paths)
        for paths, targets in found.items()
    )


def _modules(
    component: Component, path: str, prefix: str, part: Tensor | Layout | LayerList
) -> Iterator[tuple[str, str]]:
    """Yield the prefix of the tensor names of each component, and its path in the spec."""
    yield prefix, path
    if isinstance(part, Layout):
        inside = list(children(component, path))
        names: Mapping[str, str] = layout_names(inside, part)
        for child in inside:
            if name := names.get(child.name):
                inner = part.parts[name]
                yield from _modules(child.component, child.path, f"{prefix}{name}.", inner)


def _owner(name: str, modules: Mapping[str, str]) -> str:
    return modules[max((prefix for prefix in modules if name.startswith(prefix)), key=len)]
