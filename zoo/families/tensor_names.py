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
    making = [active for active in rules if not active.rule.copies]
    tied: dict[str, list[str]] = {}
    for name, stored in spec.ties.items():
        tied.setdefault(stored, []).append(name)
    found: set[str] = set()
    for stored in tensors:
        shape = spec.tensors[stored].shape
        names = (stored, *tied.get(stored, ()))
        keys = (active.keys(name, shape) for name in names for active in making)
        found.update(next(filter(None, keys), ()))
    return frozenset(found)
