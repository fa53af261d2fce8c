"""The weights that a recipe leaves as they are."""

from __future__ import annotations

from collections.abc import Collection

from zoo.errors import Problem, TrainingError
from zoo.spec import ModelSpec
from zoo.training.recipe import Recipe
from zoo.weights.matching import like, patterns_for
from zoo.wording import did_you_mean, quoted


def frozen_weights(recipe: Recipe, spec: ModelSpec) -> frozenset[str]:
    """Return the names of the parameters that the recipe freezes. A tied one is frozen by any of
    its names, as by `requires_grad_(False)` of a module.

    Raises:
        TrainingError: a pattern is for no parameter of the model, or none is left to train.
    """
    weights = [name for name, tensor in spec.tensors.items() if not tensor.buffer]
    stored = dict(zip(weights, weights, strict=True)) | dict(spec.ties)
    found: set[str] = set()
    for number, pattern in enumerate(recipe.training.frozen):
        meant = like(pattern, stored)
        if not meant:
            message = f"{quoted(pattern)} is the name of no weight of {spec.name}"
            place = recipe.document.place(("training", "frozen", number), value=True)
            raise TrainingError(Problem(message, place, _hint(pattern, stored)))
        found |= meant
    if len(found) == len(weights):
        place = recipe.document.place(("training", "frozen"), value=True)
        raise TrainingError(Problem("all weights are frozen, and none is left to train", place))
    return frozenset(found)


def _hint(pattern: str, weights: Collection[str]) -> str:
    """Return the pattern for a module's weights that is meant, or an example of one."""
    first = next(iter(weights)).partition(".")[0]
    return did_you_mean(
        pattern if pattern.endswith("*") else f"{pattern}.*",
        patterns_for(weights),
        f"`*` stands for any text, as in `{first}.*`; `zoo show` shows the names",
    )
