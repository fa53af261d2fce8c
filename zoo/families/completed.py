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
    file, activations = scope.config.file, families.vocabulary.activations

    def tried(data: Mapping[str, Any]) -> _Trial:
        changed = JsonFile(file.path, dict(data), file.text)
        try:
            found = families.scope(scope.family, changed, keys)
            return _Trial(data, found, target.differences(found))
        except ZooError:  # a value is none of its key's type, or contradicts others
            return _Trial(data)

    def nearer(trial: _Trial) -> _Trial | None:
        for change, key, before in _moves(trial, {*file.data, *NO_FIELDS}):
            values = _candidates(change, before, activations, scope.family.strings)
            trials = (tried({**trial.data, key: value}) for value in values)
            best = min(trials, key=lambda one: one.distance)
            if best.distance < trial.distance:
                return best
        return None

    best = tried(file.data)
    while (better := nearer(best)) is not None:
        best = better
    return JsonFile(file.path, dict(best.data), json.dumps(best.data, indent=2) + "\n")


def _moves(trial: _Trial, fixed: Collection[str]) -> Iterator[tuple[ValueChange, str, Any]]:
    """Yield the differences, each with a key that its value was made of, and the key's value.

    What one key decides comes first. A key that decides a value which is right stays, as those do
    that are `fixed`.
    """
    if trial.scope is None:
        return
    read = keys_by_line(trial.scope)
    wrong = [(change, change["a"]["origin"] or "") for change in trial.changes if change["a"]]
    lines = {line for _, line in wrong}
    deciding = {line: next(iter(keys)) for line, keys in read.items() if len(keys) == 1}
    settled = set(deciding.values()) - {deciding.get(line) for line in lines}
    for change, line in sorted(wrong, key=lambda one: len(read.get(one[1], ()))):
        for key in sorted(read.get(line, set()) - settled - set(fixed)):
            yield change, key, trial.scope.config.get(key)


def _candidates(
    change: ValueChange, before: object, activations: Mapping[str, str], strings: frozenset[str]
) -> Iterator[Any]:
    """Yield the values that a key may need, which was `before`: that of the model, for each layer
    if there was a list, one that is so many times larger or by as much, an activation by the names
    that configurations have for it, another word that the family knows, and the values of
    switches."""
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
    if isinstance(before, str):
        yield from sorted(strings)
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
