"""Models as if they had been imported from a checkpoint with a given config.json, so that any model
can be exported as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from zoo.errors import WeightsError, ZooError
from zoo.exporting.completed import completed
from zoo.exporting.target import Target
from zoo.families.active_rules import active_rules, checkpoint_names, possible_rules
from zoo.families.defaults import ModelClass
from zoo.families.family import Family
from zoo.families.origin import Origin
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.json_files import JsonFile
from zoo.reports.data import ValueChange
from zoo.spec import ModelSpec

_MOST_ROUNDS = 4
"""Names of tensors say which rules hold, and rules say names; this often they are asked in turn."""


@dataclass(frozen=True)
class Described:
    """A model as if it had been imported: its origin, what its family reads, the values in which
    what the family makes (`a`) is another model (`b`), the parts of checkpoints of its class that
    it is lacking, and the foreign ones, of other classes, that it has; or the error if the family
    makes none."""

    origin: Origin
    scope: Scope
    changes: Sequence[ValueChange] = ()
    lacking: Sequence[str] = ()
    foreign: Sequence[str] = ()
    error: ZooError | None = None

    @property
    def distance(self) -> float:
        """How far the model is from what `transformers` would read."""
        if self.error is not None:
            return math.inf
        return len(self.changes) + len(self.lacking) + len(self.foreign)


def described(file: JsonFile, target: Target, on_trial: Callable[[], object]) -> Described:
    """Return a model as if it had been imported from a checkpoint with this config.json, or the
    nearest that its family makes. Values that the file does not state are found where these make a
    difference.

    Args:
        file: the config.json.
        target: the model.
        on_trial: called for each configuration that is tried.

    Raises:
        WeightsError: no family reads the configuration, or it names no class of `transformers`.
        SpecError: the family cannot make a spec of the configuration.
    """
    starts = sorted(_attempts(file, target), key=_distance)
    nearest = starts[0]
    for start in starts:
        if nearest.distance:
            whole = completed(start.scope, frozenset(start.origin.tensors), target, on_trial)
            nearest = min(nearest, *_attempts(whole, target), key=_distance)
    if (error := nearest.error) is not None:
        raise error if file.text else _not_found(error)
    return nearest


_distance = attrgetter("distance")


def _not_found(error: ZooError) -> ZooError:
    """The error with the help that what a class needs was looked for."""
    hint = "the class needs values that were not found: `--config` names a config.json with them"
    return type(error)(one._replace(help=one.help or hint) for one in error.problems)


def _attempts(file: JsonFile, target: Target) -> Iterator[Described]:
    """Yield a model as if it had been imported from checkpoints with this config.json.

    The names of the tensors may tell the head of a model, or other parts that its configuration
    does not. The first checkpoint has no part that would be told so, the second all those that this
    model has a place for.
    """
    spec, families = target.spec, target.families
    family = families.family_of(file)
    of_type = families.defaults(file.data["model_type"]).classes
    model_class = of_type.get(_class_name(file))
    bare = frozenset({_prefix(family, model_class)})
    told = possible_rules(families.scope(family, file, bare))
    by_rule = (checkpoint_names(spec, [rule], spec.tensors) for rule in told)
    starts = (bare, frozenset[str]().union(*by_rule))
    for keys in dict.fromkeys(_settled(one, file, spec, families, family) for one in starts):
        tensors = tuple(sorted(keys))
        origin = Origin(family=family.name, config=file.text, tensors=tensors, files=target.files)
        scope = families.scope(family, file, keys)
        try:
            changes = target.differences(target.made(scope))
            lacking = [] if model_class is None else model_class.lacking(keys)
            foreign = [] if model_class is None else model_class.foreign(keys, of_type.values())
            yield Described(origin, scope, changes, lacking, foreign)
        except ZooError as error:
            yield Described(origin, scope, error=error)


def _settled(
    keys: frozenset[str], file: JsonFile, spec: ModelSpec, families: Families, family: Family
) -> frozenset[str]:
    """The names of the tensors by the rules that hold where a checkpoint has these names."""
    for _ in range(_MOST_ROUNDS):
        rules = active_rules(families.scope(family, file, keys))
        before, keys = keys, checkpoint_names(spec, rules, spec.tensors)
        if keys == before:
            break
    return keys


def _class_name(file: JsonFile) -> str:
    stated = file.data.get("architectures")
    if isinstance(stated, list) and len(stated) == 1 and isinstance(stated[0], str):
        return stated[0]
    raise WeightsError(
        "`architectures` must name the class of `transformers` that the model becomes",
        file.place("architectures"),
        help='for example `"architectures": ["LlamaForCausalLM"]`',
    )


def _prefix(family: Family, model_class: ModelClass | None) -> str:
    """The prefix of the tensors of a class, or that which most have if the class is not known."""
    if model_class is None:
        return family.prefixes[0]
    parts = [f"{part}." for part in model_class.parts]
    own = (
        one
        for one in family.prefixes
        if one and any(part.startswith(one) or one.startswith(part) for part in parts)
    )
    return next(own, family.prefixes[-1])
