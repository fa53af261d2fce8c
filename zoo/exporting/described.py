"""Models as if they had been imported from a checkpoint with a given config.json, so that any model
can be exported as one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zoo.errors import Place, Problem, WeightsError, ZooError
from zoo.exporting.completed import completed
from zoo.exporting.target import Target
from zoo.families.family import Family
from zoo.families.origin import Origin
from zoo.families.plan import active_rules, possible_rules
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.tensor_names import checkpoint_names
from zoo.json_files import JsonFile
from zoo.showing.data import ValueChange
from zoo.spec import ModelSpec
from zoo.wording import quoted

_BASE_CLASS = re.compile(r"\w+(?:(?<!LMHead)(?<![a-z]MT)Model|Encoder)")
"""The name of a class of `transformers` without a head, whose tensors have no prefix."""
_MOST_ROUNDS = 4
"""Names of tensors say which rules hold, and rules say names; this often they are asked in turn."""


@dataclass(frozen=True)
class Described:
    """A model as if it had been imported: its origin, what its family reads, and the values in
    which what the family makes (`a`) is another model (`b`), or the error if it makes none."""

    origin: Origin
    scope: Scope
    changes: Sequence[ValueChange] = ()
    error: ZooError | None = None


def described(
    file: JsonFile, target: Target, files: Mapping[str, str], families: Families
) -> Described:
    """Return a model as if it had been imported from a checkpoint with this config.json, or the
    nearest that its family makes. Values that the file does not state are found where these make a
    difference.

    Args:
        file: the config.json.
        target: the model.
        files: the files beside the model, with the SHA-256 of each.
        families: where the family that reads the configuration is looked up.

    Raises:
        WeightsError: no family reads the configuration, it names no class of `transformers`, or the
            family leaves open what the tensors of such a checkpoint are called.
        SpecError: the family cannot make a spec of the configuration.
    """
    starts = sorted(_attempts(file, target, files, families), key=_distance)
    nearest = starts[0]
    for start in starts:
        if _distance(nearest):
            whole = completed(start.scope, frozenset(start.origin.tensors), target, families)
            nearest = min(nearest, *_attempts(whole, target, files, families), key=_distance)
    if nearest.error is not None:
        raise nearest.error
    return nearest


def _distance(one: Described) -> float:
    return math.inf if one.error is not None else len(one.changes)


def _attempts(
    file: JsonFile, target: Target, files: Mapping[str, str], families: Families
) -> Iterator[Described]:
    """Yield a model as if it had been imported from checkpoints with this config.json.

    The names of the tensors may tell the head of a model, or other parts that its configuration
    does not. The first checkpoint has no part that would be told so, the second all those that this
    model has a place for.
    """
    family = families.family_of(file)
    _check_class(file)
    bare = frozenset({_prefix(family, file)})
    told = possible_rules(families.scope(family, file, bare))
    spec = target.spec
    by_rule = (checkpoint_names(spec, [rule], spec.tensors) for rule in told)
    for start in (bare, frozenset[str]().union(*by_rule)):
        keys = _settled(start, file, spec, families, family)
        tensors = tuple(sorted(keys))
        origin = Origin(family=family.name, config=file.text, tensors=tensors, files=dict(files))
        scope = families.scope(family, file, keys)
        try:
            yield Described(origin, scope, target.differences(scope))
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


def _check_class(file: JsonFile) -> None:
    stated = file.data.get("architectures")
    if not (isinstance(stated, list) and len(stated) == 1 and isinstance(stated[0], str)):
        raise WeightsError(
            Problem(
                "`architectures` must name the class of `transformers` that the model becomes",
                file.place("architectures"),
                help='for example `"architectures": ["LlamaForCausalLM"]`',
            )
        )


def _prefix(family: Family, file: JsonFile) -> str:
    """The prefix that `transformers` writes: none before the tensors of a class without a head, and
    otherwise that of the model type, or the only one that there is, or the first of two."""
    named = [prefix for prefix in family.prefixes if prefix]
    own = f"{file.data['model_type']}.".replace("-", "_")
    last = family.prefixes[-1]
    if _BASE_CLASS.fullmatch(file.data["architectures"][0]) and (not last or len(named) == 2):
        return last
    if own in named:
        return own
    if len(named) > 2:
        raise WeightsError(
            Problem(
                f"the family {quoted(family.name)} reads tensors with several prefixes: "
                f"{', '.join(f'`{prefix}`' for prefix in named)}",
                Place(str(family.path)),
                help="which of them a class has, only a checkpoint tells: a model that was "
                "imported from one is exported without a configuration",
            )
        )
    return family.prefixes[0]
