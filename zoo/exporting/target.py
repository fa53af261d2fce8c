"""The model that a configuration should mean, and where it means another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.spec import Made
from zoo.files.of_model import LIST_OF_MODULES
from zoo.reports.data import ValueChange
from zoo.reports.diff import value_changes
from zoo.reports.sides import Side
from zoo.spec import ModelSpec

_TRAINING = frozenset({"dropout", "init", "auxiliary_loss"})
"""The keys of specs that training alone reads: a configuration may state others, or none."""
_ROUNDING = frozenset({"cast"})
"""Those that say when numbers are rounded to less than float32, where weights are in less."""
_UNMASKED = frozenset({"pad_id", "padding"})
"""Those that say what is hidden where no mask is given: `transformers`, where a configuration does
not state them, hides nothing, and its tokenizers give a mask."""


@dataclass(frozen=True)
class Target:
    """A model.

    Args:
        spec: its spec, without names of classes, which a family does not put there.
        rounds: whether some of its weights are in less than float32, so that it matters when
            numbers are rounded.
        files: the files beside it, with the SHA-256 of each.
        families: those that may describe it.
    """

    spec: ModelSpec
    rounds: bool
    files: Mapping[str, str]
    families: Families

    def made(self, scope: Scope) -> Made:
        """The spec that a family makes of a configuration, before it is checked. Raises `SpecError`
        if an expression has no value."""
        # What describes layers of sentence-transformers is beside config.json.
        head = {"head": self.spec.to_dict()["head"]} if LIST_OF_MODULES in self.files else {}
        return Made(scope, self.spec.name, head)

    def differences(self, made: Made) -> list[ValueChange]:
        """The values in which what a family makes (`a`) is another model than this one (`b`).
        Raises `SpecError` if that is no valid spec."""
        theirs = made.spec(self.families.registry)
        changes = value_changes(Side(theirs.name, theirs), Side(self.spec.name, self.spec))
        return [change for change in changes if not self._ignores(change)]

    def _ignores(self, change: ValueChange) -> bool:
        keys = change["path"].split(".")
        if keys[-1] == "at":  # rules that say in another way what each layer has
            return True
        ignored = _TRAINING if self.rounds else _TRAINING | _ROUNDING
        return not ignored.isdisjoint(keys) or (change["a"] is None and keys[-1] in _UNMASKED)


def all_tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables in the data of a spec, each before those inside."""
    if isinstance(value, dict):
        yield cast("dict[str, Any]", value)
    if isinstance(value, dict | list):
        items = cast("dict[str, Any] | list[Any]", value)
        for inner in items.values() if isinstance(items, dict) else items:
            yield from all_tables(inner)


def by_first_layers(data: dict[str, Any]) -> None:
    """Change the data of a spec so that each stack has the values of its first layer, as families
    make them, and rules for the others. It describes the same model."""
    for table in all_tables(data):
        rules: list[dict[str, Any]] = table.get("layers") or []
        if first := next((rule for rule in rules if 0 in rule["at"]), None):
            ruled = {layer for rule in rules for layer in rule["at"]}
            rest = [layer for layer in range(table["n_layers"]) if layer not in ruled]
            others = [rule for rule in rules if rule is not first]
            if rest:
                others.append({**{key: table[key] for key in first.keys() - {"at"}}, "at": rest})
            table |= {key: inner for key, inner in first.items() if key != "at"}
            table["layers"] = others
