"""The rules in a stack's `layers`: which layers each is for (`every = 6`, `first = 3`,
`at = [0, 5]`), and which layers are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from zoo.errors import Findings, Problem
from zoo.resolving.layer_values import Layer
from zoo.resolving.tables import Leaf, Table, as_table, described, is_list_of_tables
from zoo.resolving.usage import Usage
from zoo.wording import counted, dotted

SELECTORS = ("every", "first", "last", "at")
START = "start"
MOST_RULES = 64
"""Limit for one layer: each value is looked up in all its rules, for every set of layers."""


class RuleError(ValueError):
    """A rule that selects no layers, with the key that is wrong (or None for the whole rule)."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class NoSuchLayerError(RuleError):
    """A rule for layers that the stack does not have."""


class LayerRuleTables:
    """The rules that a spec states. `tables` holds those whose layers are known."""

    def __init__(self, usage: Usage, findings: Findings) -> None:
        self.usage = usage
        self.findings = findings
        self.tables: list[Table] = []

    def tables_of(self, name: str, entry: Leaf | Table) -> list[Table]:
        """Return the rules in a list of tables; none, with a problem, if the value is no list."""
        self.usage.use(entry)
        value = entry.value if isinstance(entry, Leaf) else None
        if is_list_of_tables(value):
            return [
                as_table(item, entry.document, (*entry.path, index), self.findings)
                for index, item in enumerate(value)
            ]
        message = f"`{name}` must be a list of tables"
        if isinstance(entry, Table):
            self.usage.use_all(entry)
        else:
            message += f", not {described(entry.value)}"
        hint = f"write [[{dotted(entry.path)}]]"
        self.findings.add_once(Problem(message, entry.place(value=True), hint))
        return []

    def selections(self, rules: Sequence[Table], stack: Layer) -> list[list[int]] | None:
        """Return the layers that each rule selects in the stack of a layer, whose number of layers
        is known; None, with a problem, if too many rules select one layer."""
        found: list[list[int]] = []
        n_rules: Counter[int] = Counter()
        for rule in rules:
            layers = self._layers_of(rule, stack)
            n_rules.update(layers)
            if any(n_rules[layer] > MOST_RULES for layer in layers):
                message = f"more than {MOST_RULES} rules speak of one layer"
                self.findings.add(Problem(message, rule.place()))
                return None
            found.append(layers)
        self.tables += rules
        return found

    def _layers_of(self, rule: Table, stack: Layer) -> list[int]:
        """Return the layers that a rule selects; none, with a problem, if its selector is wrong."""
        stated: dict[str, Any] = {}
        for key in (*SELECTORS, START):
            self.usage.remember(rule, key)
            entry = rule.entries.get(key)
            if entry is not None:
                self.usage.use(entry)
                stated[key] = entry.value if isinstance(entry, Leaf) else None
        assert stack.n_layers is not None  # the caller ensures it
        try:
            return selected(stated, stack.n_layers)
        except RuleError as error:
            where = rule.entries[error.key] if error.key else rule
            is_beyond = isinstance(error, NoSuchLayerError)
            notes = stack.count_elsewhere(where.document) if is_beyond else ()
            self.findings.add_once(Problem(str(error), where.place(value=True), related=notes))
            self.usage.use_all(rule)
            return []


def selected(rule: dict[str, Any], n_layers: int) -> list[int]:
    """Return the layers, counted from 0, that the selector of a rule names.

    - `every = n`: the n-th, 2n-th, ... layer; with `start = k`, layers k, k + n, ...
    - `first = n`, `last = n`: the first or the last n layers.
    - `at = [i, j]`: the layers with these numbers.

    Raises:
        NoSuchLayerError: its value is out of range.
        RuleError: there is not exactly one selector, or its value is malformed.
    """
    stated = [key for key in SELECTORS if key in rule]
    if not stated:
        raise RuleError("a rule needs one of `every`, `first`, `last` and `at`")
    if len(stated) > 1:
        raise RuleError(f"a rule cannot have both `{stated[0]}` and `{stated[1]}`", stated[1])
    key = stated[0]
    value = rule[key]
    if START in rule and key != "every":
        raise RuleError("`start` goes with `every`", START)
    if key == "at":
        return _listed(value, n_layers)
    if not _is_count(value) or value < 1:
        raise RuleError(f"`{key}` must be an integer of at least 1", key)
    if key == "every":
        start = rule.get(START, value - 1)
        if not _is_count(start) or start < 0:
            raise RuleError("`start` must be the number of a layer, from 0", START)
        found = list(range(start, n_layers, value))
    else:
        if value > n_layers:
            raise NoSuchLayerError(f"the stack has {counted(n_layers, 'layer')}", key)
        found = list(range(value) if key == "first" else range(n_layers - value, n_layers))
    if not found:
        raise NoSuchLayerError(f"none of the {n_layers} layers is meant", key)
    return found


def _listed(value: Any, n_layers: int) -> list[int]:
    if _is_count(value):
        raise RuleError(f"`at` must be a list of layer numbers: write `[{value}]`", "at")
    if not isinstance(value, list | tuple) or not value or not all(map(_is_count, value)):
        raise RuleError("`at` must be a list of layer numbers, from 0", "at")
    if beyond := [i for i in value if not 0 <= i < n_layers]:
        raise NoSuchLayerError(f"there is no layer {beyond[0]}: they are 0 to {n_layers - 1}", "at")
    if len(set(value)) != len(value):
        raise RuleError("`at` names a layer twice", "at")
    return sorted(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def groups(selections: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Group the layers to which the same rules apply: the layers, by the numbers of the rules."""
    rules_of: dict[int, list[int]] = {}
    for number, layers in enumerate(selections):
        for layer in layers:
            rules_of.setdefault(layer, []).append(number)
    found: dict[tuple[int, ...], list[int]] = {}
    for layer in sorted(rules_of):
        found.setdefault(tuple(rules_of[layer]), []).append(layer)
    return found


def alike(layers: Sequence[int], lists: Collection[Sequence[Any]]) -> list[list[int]]:
    """Group the layers for which all lists, which have one value for each layer, have the same
    values, in the order of their first layers."""
    found: dict[tuple[str, ...], list[int]] = {}
    for layer in layers:
        found.setdefault(tuple(repr(values[layer]) for values in lists), []).append(layer)
    return list(found.values())
