"""Boxes for the components of a spec, and the parts of the layout that hold their tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from zoo.component import GIVEN, Component, Part, fields_of
from zoo.drawing.figure import Box
from zoo.layout import LayerList, Layout, Tensor
from zoo.showing.children import (
    Child,
    beside_kind,
    children,
    distinctive_values,
    is_absent,
)
from zoo.showing.parts import with_values
from zoo.slots import Embedding, Init, Plugin, slot_of

Keys = Mapping[str, Sequence[str]]
"""Maps the paths of components to the keys whose values a drawing shows."""


def box_of(
    child: Child, *, without: tuple[str, ...] = (), keys: Keys = MappingProxyType({})
) -> Box:
    """Return the box of a component: its kind, or the name of its field if it has none; the label
    of its layout; its parameters. `without` names fields whose components are drawn elsewhere."""
    component, small = child.component, []
    title = child.name
    if isinstance(component, Plugin):
        title, small = component.kind, [child.name]
    if count := component.layout().n_parameters:
        small.append(f"{short_number(count)} parameters")
    return Box(
        path=child.path,
        role=role_of(component),
        title=title,
        told=_said(child, keys),
        name=", ".join(small),
        hint=_hint(child),
        inner=tuple(_inner(child, without, keys)),
    )


def _inner(child: Child, without: tuple[str, ...], keys: Keys) -> Iterator[Box]:
    """Yield boxes of one line for the components inside a component, at any depth."""
    for inside in children(child.component, child.path):
        if inside.name in without or is_absent(inside.component):
            continue
        if isinstance(inside.component, Init):
            continue
        kind = [kind_of(inside.component)] if isinstance(inside.component, Plugin) else []
        shown = ", ".join(filter(None, [*kind, _said(inside, keys)]))
        title = cut(f"{inside.name}: {shown}" if shown else inside.name)
        yield Box(inside.path, role_of(inside.component), title, hint=_hint(inside))
        yield from _inner(inside, (), keys)


def _said(child: Child, keys: Keys) -> str:
    """Return the label of the layout without the kind, and the values of the keys to show."""
    said = beside_kind(child.component.layout().label, kind_of(child.component))
    values = {key: getattr(child.component, key) for key in keys.get(child.path, ())}
    return with_values(said, child.component, values)


def varied(layers: Sequence[Sequence[Child]]) -> Keys:
    """Return the keys whose values differ between the layers of a stack. Each layer is given by its
    block and its position schemes."""
    values: dict[tuple[str, str, str], set[str]] = {}
    places: dict[tuple[str, str, str], set[str]] = {}
    for layer in layers:
        for child in layer:
            for place, path, value in _values(child, child.name):
                values.setdefault(place, set()).add(value)
                places.setdefault(place, set()).add(path)
    found: dict[str, list[str]] = {}
    for place, different in values.items():
        for path in sorted(places[place]) if len(different) > 1 else ():
            found.setdefault(path, []).append(place[-1])
    return found


def _values(child: Child, name: str) -> Iterator[tuple[tuple[str, str, str], str, str]]:
    """Yield each value inside a component as its key (place in the layer, kind, field), the path of
    the component, and JSON. None is left out: a field that depends on an absent one is None."""
    component = child.component
    for key, mark in fields_of(type(component)).items():
        value = getattr(component, key)
        if not isinstance(mark, Part) and mark is not GIVEN and value is not None:
            place = name, kind_of(component), key
            yield place, child.path, json.dumps(value)
    for inside in children(component, child.path):
        yield from _values(inside, f"{name}.{inside.name}")


def kind_of(component: Component) -> str:
    """Return the kind of a plugin; for other components, the name of the class."""
    return component.kind if isinstance(component, Plugin) else type(component).__name__


def role_of(component: Component) -> str:
    """Return the slot that a component fills, or "other"."""
    return slot_of(component) or "other"


def _hint(child: Child) -> str:
    """Return the values of a component that are not the defaults, a line for each."""
    component = child.component
    kind = {"kind": component.kind} if isinstance(component, Plugin) else {}
    values = {**kind, **distinctive_values(component)}
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())


# --- where a component's tensors are ------------------------------------------------------------


def layout_names(inside: list[Child], layout: Layout) -> dict[str, str]:
    """Map the fields of components inside another to the names of their parts in its layout.

    That is the part of the same name; for an embedding, its `site`, which also holds added
    positions; or otherwise the first part with the same tensors. A list of layers may hold several.
    """
    found = {child.name: child.name for child in inside if child.name in layout.parts}
    for child in inside:
        if isinstance(child.component, Embedding) and child.component.site in layout.parts:
            found[child.name] = child.component.site
    for child in inside:
        own = dict(child.component.layout().parts)
        if child.name in found or not own:
            continue
        holding = [name for name, part in layout.parts.items() if _holds(part, own)]
        free = (name for name in holding if name not in found.values())
        lists = (name for name in holding if isinstance(layout.parts[name], LayerList))
        if name := next(free, None) or next(lists, None):
            found[child.name] = name
    return found


def _holds(
    part: Tensor | Layout | LayerList, own: Mapping[str, Tensor | Layout | LayerList]
) -> bool:
    if isinstance(part, LayerList):
        return any(dict(layer.parts) == own for _, layer in part.groups)
    return isinstance(part, Layout) and own.items() <= dict(part.parts).items()


# --- text ---------------------------------------------------------------------------------------


def short_number(count: int) -> str:
    """Format a count with at most four digits: 512, 65.0M, 405B."""
    if count < 10_000:
        return f"{count:,}"
    size = float(count)
    for unit in ("k", "M", "B"):
        size /= 1000
        if size < 999.5:
            return f"{size:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}{unit}"
    return f"{size / 1000:,.1f}T"


def cut(text: str, width: int = 44) -> str:
    """Shorten a text to at most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
