"""The published form of a model that was trained with a new head on the weights of a checkpoint:
the class of `transformers` with this head, its configuration, and the names of its tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zoo.errors import Place, WeightsError
from zoo.families.active_rules import ActiveRule, active_rules, checkpoint_names
from zoo.families.class_names import unnamed, written_names
from zoo.families.origin import Origin
from zoo.families.registered import Families
from zoo.files.of_model import CONFIG
from zoo.json_files import parse_json
from zoo.purpose import Classes
from zoo.spec import ModelSpec

_CLASS = re.compile(r"(\w+?)(?:For[A-Z]\w*|LMHeadModel|Model)")
"""The name of a class of `transformers`: that of the encoder, and what it is for."""


def origin_with_head(
    base: Origin, files: Mapping[str, str], spec: ModelSpec, families: Families, where: Place
) -> Origin:
    """The origin of a model as if it had been imported with its new head. Whether a family makes
    the same model of it is not checked.

    Args:
        base: the origin of the checkpoint that training started from.
        files: the files beside the model, with the SHA-256 of each.
        spec: the model's spec.
        families: where the family of the checkpoint is looked up.
        where: the model, for messages.

    Raises:
        WeightsError: the head has no class in `transformers`, or the configuration of the
            checkpoint does not name that of its own.
    """
    classes = spec.model.classes
    if classes is None:
        raise WeightsError(
            "its head began anew, and `transformers` has classes for new heads that classify alone",
            where,
            help="a `classifier` or a `token_classifier` can be exported",
        )
    config = _config(base, classes, spec, where)
    family = families.family(base.family)
    before = families.scope(
        family, parse_json(Path(CONFIG), base.config.encode()), frozenset(base.tensors)
    )
    own = [f"{family.prefixes[0]}{key.removeprefix(before.prefix)}" for key in base.tensors]
    scope = families.scope(family, parse_json(Path(CONFIG), config.encode()), frozenset(own))
    names = _names(spec, active_rules(scope), own)
    return Origin(
        family=base.family,
        config=config,
        dtype=base.dtype,
        tensors=tuple(sorted(names)),
        files=dict(files),
    )


def _config(base: Origin, classes: Classes, spec: ModelSpec, where: Place) -> str:
    data: dict[str, Any] = json.loads(base.config)
    stated = data.get("architectures")
    named = _CLASS.fullmatch(str(stated[0])) if isinstance(stated, list) and stated else None
    if named is None:
        raise WeightsError(
            "the config.json of the checkpoint names no class of `transformers` as its "
            "`architectures`, of which the one with another head could be told",
            where,
        )
    of = "ForTokenClassification" if classes.each_token else "ForSequenceClassification"
    head = spec.to_dict()["head"]
    data |= {
        "architectures": [f"{named[1]}{of}"],
        **written_names(classes.labels or unnamed(classes.number)),
        "classifier_dropout": head.get("dropout"),
    }
    data.pop("problem_type", None)
    if classes.problem_type is not None:
        data["problem_type"] = classes.problem_type
    return json.dumps(data, indent=2) + "\n"


def _names(spec: ModelSpec, rules: Iterable[ActiveRule], own: Iterable[str]) -> set[str]:
    """The names of the tensors of a checkpoint of a model: those of the checkpoint that training
    started from, where they become weights of the model, and others by the family's rules."""
    rules = [active for active in rules if active.zoo and not active.rule.drop]
    found: set[str] = set()
    made: set[str] = set()
    for key in own:
        for active in rules:
            bindings = active.hf.match(key)
            if bindings is None:
                continue
            targets = {target.fill(bindings) for target in active.zoo}
            if {spec.ties.get(target, target) for target in targets} <= spec.tensors.keys():
                found.add(key)
                made |= {spec.ties.get(target, target) for target in targets}
    new = [name for name in spec.tensors if name not in made]
    return found | checkpoint_names(spec, rules, new)
