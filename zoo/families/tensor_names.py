"""The names that the tensors of a model have in a checkpoint, by the rules of a family."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.families.plan import ActiveRule
from zoo.spec import ModelSpec


def checkpoint_names(
    spec: ModelSpec, rules: Iterable[ActiveRule], tensors: Iterable[str]
) -> frozenset[str]:
    """Return the names in a checkpoint of what becomes the stored `tensors` of a model. The first
    rule that makes a tensor counts, and of alternative spellings the first."""
    making = [active for active in rules if active.zoo and not active.rule.copies]
    tied: dict[str, list[str]] = {}
    for name, stored in spec.ties.items():
        tied.setdefault(stored, []).append(name)
    found: set[str] = set()
    for stored in tensors:
        matches = (
            (active, target.match(name))
            for name in (stored, *tied.get(stored, ()))
            for active in making
            for target in active.zoo
        )
        for active, bindings in matches:
            if bindings is not None:
                found.update(active.keys(bindings, spec.tensors[stored].shape))
                break
    return frozenset(found)
