"""Configurations that leave values out: found are those with which a family makes a given model.

A family says what a configuration means, not which one means a model. Its expressions are not
turned around: where what it makes differs from the model, the keys that the value was made of are
tried with the value that it should have, which most of them state as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from zoo.errors import ZooError
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.spec import keys_by_line
from zoo.families.target import Target
from zoo.json_files import JsonFile
from zoo.showing.data import ValueChange

NO_FIELDS = frozenset({"default_theta", "quantization_config", "transformers_weights"})
"""Keys of defaults that say what a class is, or how a checkpoint is stored: no configuration of a
new model states them."""


@dataclass(frozen=True)
class _Trial:
    """A configuration, and what its family makes otherwise than the model; None if it makes no
    model of it."""

    data: Mapping[str, Any]
    scope: Scope | None = None
    changes: Sequence[ValueChange] = ()

    @property
    def distance(self) -> float:
        """How far it is from the model. A value that is missing, or of another type, counts more
        than a wrong number: some keys count only where others switch them on."""
        if self.scope is None:
            return math.inf
        return sum(1 if _alike(change) else 2 for change in self.changes)


def completed(scope: Scope, keys: frozenset[str], target: Target, families: Families) -> JsonFile:
    """Return a configuration with the values that it does not state and that a model needs, as far
    as they are found: whether the family then makes the model is to be checked.

    Args:
        scope: the family, with the configuration.
        keys: the names of the tensors of a checkpoint of the model.
        target: the model.
        families: those of the registry.
    """
    file, words = scope.config.file, families.vocabulary.activations

    def tried(data: Mapping[str, Any]) -> _Trial:
        changed = JsonFile(file.path, dict(data), file.text)
        try:
            found = families.scope(scope.family, changed, keys)
            return _Trial(data, found, target.differences(found))
        except ZooError:  # a value is none of its key's type, or contradicts others
            return _Trial(data)

    best, before = tried(file.data), None
    while best is not before:
        before = best
        for change, named in _open_changes(best, {*file.data, *NO_FIELDS}):
            for key in named:
                values = _candidates(change, best.scope and best.scope.config.get(key), words)
                trials = (tried({**best.data, key: value}) for value in values)
                best = min(best, *trials, key=lambda one: one.distance)
    return JsonFile(file.path, dict(best.data), json.dumps(best.data, indent=2) + "\n")


def _open_changes(trial: _Trial, fixed: Collection[str]) -> list[tuple[ValueChange, list[str]]]:
    """The differences, each with the keys that its value was made of, but those that are `fixed`;
    what one key decides comes first."""
    if trial.scope is None:
        return []
    read, found = keys_by_line(trial.scope), list[tuple[ValueChange, list[str]]]()
    for change in trial.changes:
        line = change["a"] and change["a"]["origin"]
        found.append((change, sorted(read.get(line or "", set()).difference(fixed))))
    return sorted(found, key=lambda one: len(one[1]))


def _candidates(
    change: ValueChange, before: object, activations: Mapping[str, str]
) -> Iterator[Any]:
    """Yield the values that a key may need, which was `before`: that of the model, for each layer
    if there was a list, one that is so many times larger or by as much, an activation by the names
    that configurations have for it, and the values of switches."""
    a, b = (side and side["value"] for side in (change["a"], change["b"]))
    wanted = list(_scalars(b))
    yield from wanted
    if isinstance(before, list):
        yield from ([value] * len(before) for value in wanted)
    if _is_number(before) and _is_number(a) and _is_number(b):
        if a and type(before)(before * b / a) * a == before * b:
            yield type(before)(before * b / a)
        yield before + b - a
    yield from (name for name, ours in activations.items() if ours in wanted)
    yield from (True, False, None)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scalars(value: object) -> Iterator[Any]:
    if isinstance(value, dict | list):
        items = cast("dict[str, object] | list[object]", value)
        for item in items.values() if isinstance(items, dict) else items:
            yield from _scalars(item)
    elif value is not None:
        yield value


def _alike(change: ValueChange) -> bool:
    a, b = change["a"], change["b"]
    return a is not None and b is not None and type(a["value"]) is type(b["value"])
