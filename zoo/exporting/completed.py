"""Configurations that leave values out: found are those with which a family makes a given model.

A family says what a configuration means, not which one means a model. Its expressions are not
turned around: where what it makes differs from the model, the keys that the value was made of are
tried with the value that it should have, which most of them state as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from zoo.errors import ZooError
from zoo.exporting.target import Target
from zoo.exporting.wholes import whole_values
from zoo.families.rotary import ROPE
from zoo.families.scope import Scope
from zoo.families.spec import Line, lines_of
from zoo.json_files import JsonFile
from zoo.reports.data import ValueChange

NO_FIELDS = frozenset({"default_theta", "quantization_config", "transformers_weights"})
"""Keys of defaults that say what a class is, or how a checkpoint is stored: no configuration of a
new model states them."""

_FEW = 4
"""Up to this, every count is tried, such as that of the first layers without experts."""


@dataclass(frozen=True)
class _Trial:
    """The scope of a configuration, and what its family makes otherwise than the model; no changes
    if it makes no model."""

    scope: Scope
    changes: Sequence[ValueChange] | None

    @property
    def data(self) -> Mapping[str, Any]:
        return self.scope.config.file.data

    @property
    def distance(self) -> float:
        """How far it is from the model. A value that is missing, or of another type, counts more
        than a wrong number: some keys count only where others switch them on."""
        if self.changes is None:
            return math.inf
        return sum(1 if _alike(change) else 2 for change in self.changes)


def completed(
    scope: Scope, keys: frozenset[str], target: Target, on_trial: Callable[[], object]
) -> JsonFile:
    """Return a configuration with the values that it does not state and that a model needs, as far
    as they are found: whether the family then makes the model is to be checked.

    Args:
        scope: the family, with the configuration.
        keys: the names of the tensors of a checkpoint of the model.
        target: the model.
        on_trial: called for each configuration that is tried.
    """
    file, wholes = scope.config.file, whole_values(target, scope)
    known: dict[str, Sequence[ValueChange] | None] = {}

    def changes(scope: Scope) -> Sequence[ValueChange] | None:
        try:
            made = target.made(scope)
        except ZooError:
            return None
        if (text := repr(made.data)) not in known:  # most configurations make what others did
            try:
                known[text] = target.differences(made)
            except ZooError:
                known[text] = None
        return known[text]

    def better(trial: _Trial, values: Mapping[str, Any], *, than: float) -> _Trial | None:
        on_trial()
        changed = JsonFile(file.path, {**trial.data, **values}, file.text)
        try:
            inner = target.families.scope(scope.family, changed, keys, trial.scope)
        except ZooError:  # a value is none of its key's type
            return None
        found = _Trial(inner, changes(inner))
        return found if found.distance < than else None

    def nearer(trial: _Trial, failed: set[str]) -> _Trial | None:
        at_once: dict[str, Any] = {}
        for key, values in _moves(trial, target, wholes):
            if key in file.data or key in NO_FIELDS:
                continue
            for number, value in enumerate(values):
                if not number and key not in wholes:
                    at_once.setdefault(key, value)
                if (move := f"{key} {value!r}") not in failed:
                    if found := better(trial, {key: value}, than=trial.distance):
                        return found
                    failed.add(move)
        # Heads of which keys and values have as many may only be changed with these.
        return better(trial, at_once, than=trial.distance)

    best = _Trial(scope, changes(scope))
    failed: set[str] = set()  # tried again once nothing else is nearer
    while (found := nearer(best, failed) or nearer(best, failed := set())) is not None:
        best = found
    # Some classes read these alone: `rope_theta` beside them is for earlier versions.
    if ROPE in best.scope.config.read - file.data.keys():
        same = (better(best, {ROPE: rope}, than=best.distance + 1) for rope in wholes[ROPE])
        best = next(filter(None, same), best)
    data = dict(best.data)
    for key, leaf in scope.family.export.items():  # what `transformers` reads besides
        data.setdefault(key, best.scope.value(leaf))
    return JsonFile(file.path, data, json.dumps(data, indent=2) + "\n")


def _moves(
    trial: _Trial, target: Target, wholes: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield the keys that may make a difference, with the values that may be right.

    They are those that a value that differs was made of, first those that decide one alone. A key
    that decides a value which is right stays. Where no model is made, a single key may lack.
    """
    if trial.changes is None:
        values = {(type(one), one): one for one in _scalars(target.spec.to_dict())}.values()
        for key in sorted(trial.scope.config.read):
            yield key, values
        return
    lines = lines_of(trial.scope)
    wrong = [
        (change, line)
        for change in trial.changes
        if change["a"]
        for line in _made_by(change["path"], change["a"]["origin"], lines)
    ]
    deciding = {name: next(iter(one.keys)) for name, one in lines.items() if len(one.keys) == 1}
    settled = set(deciding.values()) - {deciding.get(line) for _, line in wrong}
    wrong.sort(key=lambda one: len(lines[one[1]].keys))
    moves = [(change, key) for change, line in wrong for key in sorted(lines[line].keys - settled)]
    activations = target.families.vocabulary.activations
    for _, key in moves:
        if key != ROPE:
            yield key, wholes.get(key, ())
    for change, key in moves:
        if key not in wholes:
            yield key, _likely(change, activations)
    for change, key in moves:
        yield key, _unlikely(change, trial.scope.config.get(key), trial.scope.family.strings)
    for _, key in moves:
        if key in trial.scope.config.defaults.nullable:
            yield key, [None]
    if any(key == ROPE for _, key in moves):
        yield ROPE, wholes[ROPE]


def _made_by(path: str, origin: str | None, lines: Mapping[str, Line]) -> list[str]:
    """The lines of a family that make a value. Where one has made none, so that there is a default,
    they are those for any key on its path."""
    if origin is not None and origin in lines:
        return [origin]
    return [name for name, line in lines.items() if not line.made.isdisjoint(path.split("."))]


def _likely(change: ValueChange, activations: Mapping[str, str]) -> Iterator[Any]:
    """Yield the value of the model, an activation by the names that configurations have for it, and
    the values of switches."""
    wanted = list(_scalars(change["b"] and change["b"]["value"]))
    yield from wanted
    yield from (name for name, ours in activations.items() if ours in wanted)
    yield from (True, False)


def _unlikely(change: ValueChange, before: object, words: Iterable[str]) -> Iterator[Any]:
    """Yield what a key's value may become besides: larger by as much as the value of the model, or
    as many times; a count of few; that value for each layer, if there was a list; another of the
    family's words."""
    a, b = (side and side["value"] for side in (change["a"], change["b"]))
    if _is_number(before):
        if _is_number(a) and _is_number(b):
            yield before + b - a
            yield from _proportional(before, b / a) if a and b else ()
        yield from range(_FEW)
    elif isinstance(before, list):
        yield from ([value] * len(before) for value in _scalars(b))
    elif isinstance(before, str):
        # A short one may be the beginning that others are compared by.
        yield from sorted(words, key=lambda word: (-len(word), word))


def _proportional(before: float, ratio: float) -> Iterator[int | float]:
    """Yield what a number becomes of which another is a multiple, a root or the inverse of one, and
    has changed by a ratio."""
    for power in (1, -1, 2, -2):
        value = before * abs(ratio) ** power
        if isinstance(before, float):
            yield value
        elif math.isclose(value, round(value), rel_tol=1e-9):
            yield round(value)


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
