"""The plan of a conversion: which tensors of a checkpoint become which tensors of the zoo.

It is derived from names and shapes alone. Every tensor of the checkpoint and every tensor of the
model must be in it exactly once. It is read forwards to import and backwards to export.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from zoo.errors import Place, Problem, SpecError, WeightsError
from zoo.families.active_rules import ActiveRule, active_rules
from zoo.families.pattern import Bindings
from zoo.families.scope import Scope
from zoo.spec import ModelSpec
from zoo.wording import counted

_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True, slots=True)
class Step:
    """Tensors of the checkpoint, and the stored tensors of the zoo that they become by a rule.
    Several `sources` are stacked; several `targets` are the parts of each."""

    active: ActiveRule
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    stacked: bool = False


@dataclass(slots=True)
class Plan:
    """The use of each tensor of a checkpoint, by the checkpoint's names.

    `copies` maps a copy to its original, `computed` maps a tensor to the table of the module that
    it is a copy of; `dropped` are left out. `zeros` are tensors of the zoo that the checkpoint does
    not have.
    """

    steps: list[Step] = field(default_factory=list[Step])
    copies: dict[str, str] = field(default_factory=dict[str, str])
    computed: dict[str, str] = field(default_factory=dict[str, str])
    dropped: list[str] = field(default_factory=list[str])
    zeros: list[str] = field(default_factory=list[str])


def make_plan(spec: ModelSpec, scope: Scope, keys: Iterable[str], where: Place) -> Plan:
    """Plan the conversion of the tensors `keys` of a checkpoint.

    Args:
        spec: the model's spec.
        scope: the family, with the configuration.
        keys: the names of the checkpoint's tensors.
        where: the checkpoint, for messages.

    Raises:
        WeightsError: a tensor is missing, or no rule matches a tensor.
        SpecError: the family is wrong: two rules match one tensor; or as `active_rules`.
    """
    return _Planner(spec, scope.family.name, frozenset(keys), where).made(active_rules(scope))


class _Planner:
    def __init__(self, spec: ModelSpec, family: str, keys: frozenset[str], where: Place) -> None:
        self.spec = spec
        self.family = family
        self.keys = keys
        self.where = where
        self.plan = Plan()
        self.used: dict[str, ActiveRule] = {}
        self.made_by: dict[str, Step] = {}
        self.copied: set[str] = set()
        self.problems: list[Problem] = []

    def made(self, rules: Sequence[ActiveRule]) -> Plan:
        left = self.keys
        for active in sorted(rules, key=lambda active: not active.takes_rest):
            matches = [
                (key, found) for key in sorted(left) if (found := active.hf.match(key)) is not None
            ]
            if active.takes_rest:
                left -= {key for key, _ in matches}
            for key, _ in matches:
                self.use(key, active)
            if active.computed is not None:
                self.plan.computed.update((key, active.computed.fill(b)) for key, b in matches)
            if active.rule.drop:
                self.plan.dropped += [key for key, _ in matches]
            elif active.zoo and matches:
                self.become(active, matches)
            elif active.zoo:
                self.absent(active)
        self.check_whole(rules)
        return self.plan

    def use(self, key: str, active: ActiveRule) -> None:
        if key in self.used:
            first = ("the other rule", self.used[key].place)
            message = f"two rules speak of the tensor `{key}`"
            raise SpecError(Problem(message, active.place, related=(first,)))
        self.used[key] = active

    def become(self, active: ActiveRule, matches: list[tuple[str, dict[str, str]]]) -> None:
        counted = active.counted
        groups: dict[tuple[str, ...], list[tuple[str, Bindings]]] = {}
        for key, bindings in matches:
            targets = tuple(target.fill(bindings) for target in active.zoo)
            groups.setdefault(targets, []).append((key, bindings))
        for targets, members in groups.items():
            if counted is None:
                for key, _ in members:
                    self.step(Step(active, (key,), targets))
                continue
            members.sort(key=lambda member: int(member[1][counted]))
            numbers = [int(bindings[counted]) for _, bindings in members]
            if numbers != list(range(len(numbers))):
                names = ", ".join(key for key, _ in members[:3])
                self.report(f"tensors that are counted from 0 are missing beside {names}")
                continue
            sources = tuple(key for key, _ in members)
            self.step(Step(active, sources, targets, stacked=True))

    def step(self, step: Step) -> None:
        """Add a step. If another step has made one of its targets, its sources must be copies."""
        stored = tuple(self.spec.ties.get(target, target) for target in step.targets)
        unknown = [name for name in stored if name not in self.spec.tensors]
        if unknown:
            self.report(
                f"the model has no place for the tensor `{step.sources[0]}`: its spec has no "
                f"`{unknown[0]}`",
                ("by this rule", step.active.place),
            )
            return
        copies = step.active.rule.copies or step.targets != stored
        if made := [name for name in stored if name in self.made_by]:
            first = self.made_by[made[0]]
            if not copies and made[0] not in self.copied:
                self.made_twice(first, step, made[0])
            elif len(step.sources) != len(first.sources):
                self.report(
                    f"{counted(len(step.sources), 'tensor')} such as `{step.sources[0]}` cannot be "
                    f"the copies of {len(first.sources)} such as `{first.sources[0]}`"
                )
            else:
                self.plan.copies.update(zip(step.sources, first.sources, strict=True))
            return
        if copies:
            self.copied.update(stored)
        step = replace(step, targets=stored)
        self.made_by.update(dict.fromkeys(stored, step))
        self.plan.steps.append(step)

    def made_twice(self, first: Step, step: Step, name: str) -> None:
        if first.active is not step.active:
            related = ("the other rule", first.active.place)
            message = f"two rules make the tensor `{name}`"
            raise SpecError(Problem(message, step.active.place, related=(related,)))
        self.report(f"`{first.sources[0]}` and `{step.sources[0]}` are two spellings of one tensor")

    def absent(self, active: ActiveRule) -> None:
        if active.rule.missing == "zeros":
            self.plan.zeros += [
                name for name in self.spec.tensors if active.zoo[0].match(name) is not None
            ]

    def check_whole(self, rules: Sequence[ActiveRule]) -> None:
        for key, more in _alike(self.keys - self.used.keys()):
            message = f"the family `{self.family}` has no rule for the tensor `{key}`{more}"
            self.report(message)
        # Tensors that another rule has made are not missing.
        self.plan.zeros = [name for name in self.plan.zeros if name not in self.made_by]
        made = {*self.made_by, *self.plan.zeros}
        for name, more in _alike(self.spec.tensors.keys() - made):
            called = self.called(name, rules)
            there = "" if called is None else f", where it is called `{called}`"
            self.report(f"the checkpoint has no tensor that becomes `{name}`{there}{more}")
        if self.problems:
            raise WeightsError(self.problems)

    def called(self, name: str, rules: Iterable[ActiveRule]) -> str | None:
        """What the checkpoint would call a tensor of the model; None if no rule makes it."""
        shape = self.spec.tensors[name].shape
        return next((key for active in rules for key in active.keys(name, shape)), None)

    def report(self, message: str, *related: tuple[str, Place]) -> None:
        self.problems.append(Problem(message, self.where, related=related))


def _alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names for messages of what they do not have: of those that differ only in the numbers
    of layers or experts, the first, and the words for how many more there are."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(_NUMBER.sub("", name), []).append(name)
    for first, *others in groups.values():
        more = f", and none for {len(others):,} more that differ from it only in numbers"
        yield first, more if others else ""
