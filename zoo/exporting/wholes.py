"""What a model may have for keys of a configuration that hold a table, or a word for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

from zoo.exporting.target import Target, all_tables
from zoo.families.expression import names_in, strings_in
from zoo.families.family import Family
from zoo.families.rotary import LAYER_TYPES, ROPE, rope_of
from zoo.families.scope import Scope

_MOST = 64
"""In as many ways words are given to layers, and tables to words."""
_T = TypeVar("_T")


def whole_values(target: Target, scope: Scope) -> dict[str, list[Any]]:
    """Return the values that may mean a model, by key: of `rope_parameters`, unless the
    configuration states such settings in other keys, which these would replace; and of lists of
    words such as `layer_types`, for which the words of the family's default are tried.

    Args:
        target: the model.
        scope: the family, with the configuration.
    """
    family = scope.family
    tables = [*all_tables(target.spec.to_dict())]
    keys = family.needed[1]
    found = {
        key: _words_of_layers(tables, _words(family, key))
        for key in keys
        if key.endswith(LAYER_TYPES)
    }
    ropes: list[Any] = []
    states_rope = any("rope" in key or "rotary" in key for key in scope.config.file.data)
    for table in () if states_rope else tables:
        rope = rope_of(target.families.vocabulary, table)
        if rope is not None and rope not in ropes:
            ropes.append(rope)
    words = _words(family, LAYER_TYPES)
    by_word = [dict(zip(words, each, strict=True)) for each in _ways(ropes, len(words)) if words]
    return {**found, ROPE: [*ropes, *by_word]}


def _words(family: Family, key: str) -> list[str]:
    """The words in the expressions that read a key, which have its default."""
    words: set[str] = set()
    for source in family.expressions():
        names, keys = names_in(source)
        if key in names | keys:
            words |= strings_in(source) - keys
    return sorted(words)


def _words_of_layers(tables: Sequence[Mapping[str, Any]], words: Sequence[str]) -> list[list[str]]:
    """The lists in which the layers of a stack with the same rule have the same word."""
    found: list[list[str]] = []
    for stack in tables:
        if "n_layers" in stack:
            rules = stack.get("layers", [])
            numbers = {layer: n for n, rule in enumerate(rules) for layer in rule["at"]}
            layers = range(stack["n_layers"])
            found += [
                [each[numbers.get(layer, -1)] for layer in layers]
                for each in _ways(words, len(rules) + 1)
            ]
    return found


def _ways(values: Sequence[_T], n: int) -> list[tuple[_T, ...]]:
    """All ways to choose `n` of the values, each as often as one likes; none if they are many."""
    return [*product(values, repeat=n)] if len(values) ** n <= _MOST else []
