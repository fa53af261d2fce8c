"""What a run is, and how it differs from the run that a checkpoint is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.errors import Problem, TrainingError
from zoo.training.batches import AnyRow
from zoo.training.recipe import Recipe
from zoo.training.start import Start
from zoo.wording import quoted

_FREE_OF_HEAD = ("name", "dtype")
"""The keys above the first table that may change: they are of the result alone."""
_FREE_OF_TRAINING = (
    "steps",
    "patience",
    "accumulate",
    "recompute",
    "shard",
    "log_every",
    "valid_every",
    "checkpoint_every",
)
"""The keys of `[training]` that may change. The parts of a batch make the same update, but for
rounding, and so do the shards of a model; layers that are computed again make the very same."""
_OF_MODEL = ("model", "weights")
"""The keys that say where the model is, which has digests of its own."""


def identity(start: Start, rows: Sequence[AnyRow]) -> dict[str, Any]:
    """Everything but the machine that determines the weights of a step: the values of the recipe by
    their key path, with defaults, and the digests of the model and of the encoded data."""
    data = hashlib.sha256()
    for row in rows:
        # Rows without labels, or types, are as they were when no row had any.
        told = row[:2] if row[2] is None else row
        data.update(json.dumps(told, default=list).encode())
    return {
        "recipe": _deciding(start.recipe, masks=start.spec.model.task == "fill_mask"),
        "model": start.digest,
        "data": data.hexdigest(),
    }


def check_same_run(kept: object, now: Mapping[str, Any], recipe: Recipe, checkpoint: Path) -> None:
    """Check that a checkpoint is of this run.

    Args:
        kept: the identity of the run that the checkpoint is of.
        now: the identity of this run.
        recipe: has the places of its keys.
        checkpoint: the checkpoint.

    Raises:
        TrainingError: it is of another recipe, which names each changed key; of another model; of
            other data; or of a version of the zoo that kept no such identity.
    """
    name = f"the checkpoint {quoted(checkpoint)} is of"
    hint = (
        f"only {', '.join(f'`{key}`' for key in (*_FREE_OF_HEAD, *_FREE_OF_TRAINING))}, "
        "`[evaluation]`, and where the same model and data are, may change; begin anew with "
        "another `-o` or train a finished model further, with its folder as the `model`"
    )
    if (
        not isinstance(kept, dict)
        or kept.keys() != now.keys()
        or not isinstance(kept["recipe"], dict)
    ):
        message = f"{name} another version of the zoo, and cannot be continued"
        raise TrainingError(message, help="begin anew with another `-o`")
    was, states = kept["recipe"], now["recipe"]
    same_data = kept["data"] == now["data"]
    changed = {
        key: (
            f"`{key}` was {_described(was.get(key))} when the run began, and is "
            f"{_described(states.get(key))} now",
            recipe.place(*key.split(".")),
        )
        for key in {**states, **was}
        if was.get(key) != states.get(key) and not (same_data and key.startswith("data."))
    }
    moved = tuple(changed.pop(key) for key in _OF_MODEL if key in changed)
    problems: list[Problem] = []
    if changed:
        problems.append(Problem(f"{name} another recipe", related=tuple(changed.values())))
    if kept["model"] != now["model"]:
        problems.append(Problem(f"{name} another model", recipe.place("model"), None, moved))
    # The data is cut, split and encoded as the recipe says.
    if not changed and not same_data:
        problems.append(Problem(f"{name} other data", recipe.place("data")))
    if problems:
        raise TrainingError([*problems[:-1], problems[-1]._replace(help=hint)])


def _deciding(recipe: Recipe, *, masks: bool) -> dict[str, Any]:
    """The values of the recipe that decide what a step does."""
    free = {*_FREE_OF_HEAD, *(f"training.{key}" for key in _FREE_OF_TRAINING)}
    return {
        path: value
        for path, value in recipe.values().items()
        if path not in free
        and not path.startswith("evaluation.")
        and (masks or not path.startswith("masking."))
    }


def _described(value: object) -> str:
    return "not stated" if value is None else json.dumps(value, ensure_ascii=False)
