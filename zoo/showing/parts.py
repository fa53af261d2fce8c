"""The tree of the parts of a model, which `zoo show` prints. Does not import torch.

Parts with tensors have the names of their modules, from the layout; parts without tensors, such as
most position schemes and the initialisation, have the names of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from zoo.component import Component, LayerRules, layer_rules_of
from zoo.layout import LayerList, Layout
from zoo.showing.children import (
    Child,
    beside_kind,
    children,
    distinctive_values,
    is_absent,
    not_yet_shown,
    options_of_others,
)
from zoo.slots import Plugin

MOST_VALUES = 8
"""For a longer list of values, only their number is printed."""


Rules = dict[int, list[Child]]
"""Maps the id of a component in a layer rule to all components of that rule."""


class Row(NamedTuple):
    """One part. `layers` are the numbers of the layers that it stands for, and `runs` is the number
    of times that they run in total; `component` describes the part, None for a plain module."""

    name: str
    layout: Layout
    component: Component | None
    inner: Sequence[Row] = ()
    layers: Sequence[int] | None = None
    runs: int = 1

    @property
    def kind(self) -> str | None:
        """The kind if the component is a plugin; otherwise None."""
        return self.component.kind if isinstance(self.component, Plugin) else None

    @property
    def values(self) -> dict[str, Any]:
        """The values that its kind does not imply, without the number of layers of a stack, which
        the row of the layers shows."""
        if self.component is None:
            return {}
        values, rules = distinctive_values(self.component), layer_rules_of(type(self.component))
        return {name: one for name, one in values.items() if rules is None or name != rules.count}

    @property
    def told(self) -> str:
        """The description: the kind, the label of the layout, and the values that it lacks."""
        kind = self.kind or ""
        said = beside_kind(self.layout.label, kind)
        if self.component is not None:
            said = with_values(said, self.component, self.values)
        return ", ".join(filter(None, [kind, said]))


def with_values(label: str, component: Component, values: dict[str, Any]) -> str:
    """Return the label of a component with those of its values that the label lacks."""
    left = not_yet_shown(values, label, options_of_others(component))
    return ", ".join(filter(None, [label, values_text(left)]))


def values_text(values: dict[str, Any]) -> str:
    """Format values with their names, as in `window 4096, bias false`."""
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > MOST_VALUES:
        return f"({len(value)} values)"
    return value if isinstance(value, str) else json.dumps(value)


def rows_of(layout: Layout) -> list[Row]:
    """Return the parts directly inside. Those without tensors come before the layers, or last."""
    inside = [] if layout.component is None else list(children(layout.component))
    rules = _rules(inside)
    bare = [_bare(child) for child in _without_tensors(layout, inside, rules)]
    rows: list[Row] = []
    for name, part in layout.parts.items():
        if isinstance(part, LayerList):
            rows += [*bare, *_layer_rows(name, part, inside, rules)]
            bare = []
        elif isinstance(part, Layout) and (not part.is_empty or _is_there(part.component)):
            rows.append(Row(name, part, part.component, rows_of(part)))
    return rows + bare


def _is_there(component: Component | None) -> bool:
    return component is not None and not is_absent(component)


def _bare(child: Child) -> Row:
    layout = child.component.layout()
    return Row(child.name, layout, child.component, rows_of(layout))


def _without_tensors(layout: Layout, inside: Sequence[Child], rules: Rules) -> Iterator[Child]:
    """Yield the components inside that are not in the layout because they have no tensors."""
    placed = {id(one.component) for one in _layouts(layout)}
    lists = [part for part in layout.parts.values() if isinstance(part, LayerList)]
    layers = [layer.component for part in lists for _, layer in part.groups]
    of_layers = [rules.get(id(component), []) for component in layers]
    for child in inside:
        if isinstance(child.mark, LayerRules) or is_absent(child.component):
            continue
        if id(child.component) in placed or child.component in layers:
            continue
        if _is_replaced(child, of_layers):
            continue
        if child.component.layout().is_empty:
            yield child


def _is_replaced(child: Child, of_layers: Sequence[Sequence[Child]]) -> bool:
    """Return whether each layer has another component than this one in its place, by a rule."""
    others = [[one.component for one in own if one.name == child.name] for own in of_layers]
    return bool(others) and all(own and child.component not in own for own in others)


def _layouts(layout: Layout) -> Iterator[Layout]:
    """Yield the layouts inside, at any depth."""
    for part in layout.parts.values():
        layers = [one for _, one in part.groups] if isinstance(part, LayerList) else [part]
        for one in layers:
            if isinstance(one, Layout):
                yield one
                yield from _layouts(one)


def _layer_rows(name: str, part: LayerList, inside: Sequence[Child], rules: Rules) -> Iterator[Row]:
    around = {child.name: child.component for child in inside}
    several = len(part.groups) > 1
    for at, layer in part.groups:
        own = [
            Row(child.name, Layout(), child.component)
            for child in rules.get(id(layer.component), [])
            if child.component not in (layer.component, around.get(child.name))
        ]
        title = f"{name} {ranges(at)}" if several else name
        inner = [*own, *rows_of(layer)]
        yield Row(title, layer, layer.component, inner, at, part.runs(at))


def _rules(inside: Sequence[Child]) -> Rules:
    """Map each component of a layer rule, such as its block, to all components of the rule."""
    found: Rules = {}
    for rule in inside:
        if isinstance(rule.mark, LayerRules):
            own = list(children(rule.component))
            found |= {id(child.component): own for child in own}
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Format a sorted list of numbers as in `0-4,6-10`; a long one is cut."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ["-".join(map(str, run)) for run in runs[:4]]
    return ",".join(shown) + (",..." if len(runs) > 4 else "")
