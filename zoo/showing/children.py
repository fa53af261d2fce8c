"""The components inside a component, and the values that distinguish it from others of its kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from zoo.component import GIVEN, Component, Part, fields_of
from zoo.only_with import mark_of
from zoo.slots import Plugin


class Child(NamedTuple):
    """A component inside another: the field that holds it, its mark, and its path in the spec."""

    name: str
    mark: Part
    component: Component
    path: str


def children(component: Component, path: str = "") -> Iterator[Child]:
    """Yield the components directly inside one, in the order of its fields, and those in lists."""
    for name, mark in fields_of(type(component)).items():
        if not isinstance(mark, Part):
            continue
        value = getattr(component, name)
        inside = f"{path}.{name}" if path else name
        if isinstance(value, Component):
            yield Child(name, mark, value, inside)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                yield Child(name, mark, item, f"{inside}.{index}")


def is_absent(component: Component) -> bool:
    """Return whether a component represents the absence of one."""
    return isinstance(component, Plugin) and component.absent


def distinctive_values(component: Component) -> dict[str, Any]:
    """Return the values of a component that its kind does not imply: those of fields without a
    default, and those that differ from the default."""
    known: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, mark in fields_of(type(component)).items():
        value = known[name] = getattr(component, name)
        is_elsewhere = mark is GIVEN or isinstance(mark, Part)
        # A field that is not set has its default.
        if is_elsewhere or name == "kind" or name not in component.model_fields_set:
            continue
        field = type(component).model_fields[name]
        own = field.get_default(call_default_factory=True, validated_data=known)
        conditional = mark_of(field)
        default = own if conditional is None else conditional.default
        if value not in (default, None):
            found[name] = value
    return found


def beside_kind(label: str, kind: str) -> str:
    """Return the label of a layout without its first word if that is the kind."""
    rest = label.removeprefix(kind)
    return label if rest[:1].isalnum() or rest[:1] == "_" else rest.lstrip(" ,")


def options_of_others(component: Component) -> frozenset[str]:
    """Return the names of the options that go with the value of another one."""
    fields = type(component).model_fields.items()
    return frozenset(name for name, field in fields if mark_of(field) is not None)


def not_yet_shown(
    values: Mapping[str, Any], text: str, by_name: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values that a text does not mention, neither with their names nor, except those
    that are told `by_name` alone, as a word.

    A word of the text counts for one value. The name of a boolean mentions it if it is true.
    """
    named = {name for name, value in values.items() if f"{name} {value}" in text}
    words = Counter(re.findall(r"[\w.]+", text))
    words.subtract(str(values[name]) for name in named)
    left: dict[str, Any] = {}
    for name, value in values.items():
        if name in named:
            continue
        word = str(value) if not isinstance(value, bool) else name if value else ""
        if words[word] > 0 and name not in by_name:
            words[word] -= 1
        else:
            left[name] = value
    return left
