"""The names that the tensors of a model have in a checkpoint, by the rules of a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zoo.families.pattern import Bindings
from zoo.families.plan import ActiveRule
from zoo.spec import ModelSpec

Makers = Mapping[str, frozenset[str]]
"""The rules that make one tensor of a model, each with the names in a checkpoint of what it makes
the tensor of."""


def makers(
    spec: ModelSpec, rules: Iterable[ActiveRule], tensors: Iterable[str]
) -> dict[str, Makers]:
    """Return the rules that make each of the stored `tensors` of a model, in the order of `rules`.
    Of alternative spellings, each takes the first."""
    making = [active for active in rules if active.zoo and not active.rule.copies]
    tied: dict[str, list[str]] = {}
    for name, stored in spec.ties.items():
        tied.setdefault(stored, []).append(name)
    found: dict[str, Makers] = {}
    for stored in tensors:
        of_names = (_of(name, stored, spec, making) for name in (stored, *tied.get(stored, ())))
        found[stored] = next(filter(None, of_names), {})
    return found


def first_names(found: Iterable[Mapping[str, Makers]]) -> frozenset[str]:
    """The names in a checkpoint where the first rule of those that make a tensor does."""
    made = (by for one in found for by in one.values() if by)
    return frozenset[str]().union(*(next(iter(by.values())) for by in made))


def _of(name: str, stored: str, spec: ModelSpec, rules: Sequence[ActiveRule]) -> Makers:
    """The rules that make the tensor `name`, which may be a further name of the one stored."""
    matches = ((active, target.match(name)) for active in rules for target in active.zoo)
    return {
        active.name: frozenset(_keys(active, bindings, spec.tensors[stored].shape))
        for active, bindings in matches
        if bindings is not None
    }


def _keys(active: ActiveRule, bindings: Bindings, shape: Sequence[int]) -> list[str]:
    spelled = {name: next(iter(active.hf.words[name].values())) for name in active.spelled}
    known = {**bindings, **spelled}
    if active.counted is None:
        return [active.hf.fill(known)]
    return [active.hf.fill({**known, active.counted: str(n)}) for n in range(shape[0])]
