"""Check a family file without a checkpoint: `zoo lint`.

The default configuration of each model type is checked in every form in which a checkpoint may be
saved (by each class, and with each of the tensors that expressions ask for). Each tensor of the
model must be made by exactly one rule, and each rule must be invertible: the names of the
checkpoint are derived from those of the model and planned forwards again, and each relayout is
undone and applied to tensors on the meta device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from zoo.errors import Place, Problem, SpecError, ZooError
from zoo.families.active_rules import ActiveRule, active_rules
from zoo.families.expression import names_in, strings_in
from zoo.families.family import Family
from zoo.families.pattern import PREFIX
from zoo.families.plan import Plan, make_plan
from zoo.families.registered import Families
from zoo.families.spec import family_spec
from zoo.files.of_model import CONFIG
from zoo.json_files import JsonFile, read_json
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.wording import did_you_mean, quoted

_PRESENT = re.compile(r"""present\(\s*['"](.*?)['"]""")


@dataclass(frozen=True, slots=True)
class Linted:
    """The result of a check: the name of the family, and the numbers of its model types, of its
    rules and of the forms of checkpoints that were checked."""

    family: str
    model_types: int
    rules: int
    forms: int


def lint(family: Family, registry: Registry, config: Path | None = None) -> Linted:
    """Check a family.

    Args:
        family: the family.
        registry: where its components and defaults are looked up.
        config: a config.json to check it with, instead of the defaults of its model types.

    Raises:
        SpecError: every problem, each with its place in the family file.
        WeightsError: `config` cannot be read.
    """
    families = Families(registry)
    configs = [read_json(config)] if config else list(_default_configs(family, families))
    forms = 0
    problems = dict.fromkeys(_unread(family))
    classes, assumptions = _classes(family), _forms(family)
    for file, name, assumed in product(configs, classes, assumptions):
        file = replace(file, data={**file.data, "architectures": [name]})
        try:
            forms += _check(family, families, file, assumptions[-1], assumed)
        except ZooError as error:
            problems.update(dict.fromkeys(error.problems))
    if configs and not problems and forms == 0:  # no model type: a family for others to extend
        message = "no form of a checkpoint agrees with what the rules say is present"
        problems[Problem(message, Place(str(family.path)))] = None
    if problems:
        raise SpecError(problems)
    return Linted(family.name, len(family.model_types), len(family.rules), forms)


def _default_configs(family: Family, families: Families) -> Iterator[JsonFile]:
    for model_type in family.model_types:
        if not (families.defaults(model_type).values or family.defaults or family.example):
            raise SpecError(
                f"there is no default configuration for `{model_type}`",
                Place(str(family.path)),
                help="write one as `[example]`, or check the family with a config.json: "
                "`zoo lint FAMILY --config FILE`",
            )
        yield JsonFile(Path(CONFIG), {"model_type": model_type, **family.example}, "")


def _unread(family: Family) -> Iterator[Problem]:
    """Yield a problem for each name in the `[let]` of the family's own file that no expression
    reads. A family without a model type has names for those that extend it."""
    if not family.model_types:
        return
    needed, _ = family.needed
    for name, leaf in family.let.items():
        if leaf.document.name == str(family.path) and name not in needed:
            near = did_you_mean(name, family.let.keys() - {name}, "leave it out")
            yield Problem(f"nothing reads {quoted(name)}", leaf.place(value=False), near)


def _classes(family: Family) -> list[str]:
    """Return the classes by which a checkpoint may have been saved: every word that expressions
    compare the class with, and `""` for any other."""
    asked = (text for text in family.expressions() if "architecture" in names_in(text)[0])
    words = {word for text in asked for word in strings_in(text)}
    return ["", *sorted(filter(str.isidentifier, words))]


def _forms(family: Family) -> list[frozenset[str]]:
    """Return the subsets that are checked of the tensors that expressions ask for: none of them,
    each of them alone, and at last all."""
    asked = sorted({name for text in family.expressions() for name in _PRESENT.findall(text)})
    forms = [frozenset[str](), *(frozenset([name]) for name in asked), frozenset(asked)]
    return list(dict.fromkeys(forms))


def _check(
    family: Family,
    families: Families,
    file: JsonFile,
    asked: frozenset[str],
    assumed: frozenset[str],
) -> bool:
    """Check one form of a checkpoint, which of the tensors that expressions ask for has those that
    are assumed; return whether there are such checkpoints. Raises `ZooError` with the problems
    found."""
    prefix = family.prefixes[0]
    seeds = frozenset(
        name.replace(PREFIX, prefix).replace("*", "0") for name in (*assumed, f"{PREFIX}*")
    )
    before = families.scope(family, file, seeds)
    spec = family_spec(before, family.name, families.registry)
    keys = _expected_keys(spec, active_rules(before))
    scope = families.scope(family, file, frozenset(keys))
    if any(scope.functions["present"](name) != (name in assumed) for name in asked):
        return False
    place = Place(str(family.path))
    _check_shapes(make_plan(spec, scope, keys, place), spec)
    scope.generation()
    return True


def _expected_keys(spec: ModelSpec, rules: Iterable[ActiveRule]) -> list[str]:
    """Return the names of the tensors of a checkpoint, derived from those of the model, without
    copies."""
    keys = (
        key
        for active in rules
        if not active.rule.copies
        for name, tensor in spec.tensors.items()
        for key in active.keys(name, tensor.shape)
    )
    return list(dict.fromkeys(keys))


def _check_shapes(plan: Plan, spec: ModelSpec) -> None:
    problems: list[Problem] = []
    for step in plan.steps:
        if not step.active.relayout.changes:
            continue
        shapes = [spec.tensors[target].shape for target in step.targets]
        inner = [shape[1:] if step.stacked else shape for shape in shapes]
        tensors = [torch.empty(shape, device="meta") for shape in inner]
        try:
            again = step.active.relayout.apply(step.active.relayout.undo(tensors))
            same = [tuple(tensor.shape) for tensor in again] == inner
        except ValueError as error:
            problems.append(Problem(str(error), step.active.place))
            continue
        if not same:
            message = f"the layout of `{step.sources[0]}` cannot be undone"
            problems.append(Problem(message, step.active.place))
    if problems:
        raise SpecError(problems)
