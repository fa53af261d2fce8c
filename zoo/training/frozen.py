"""The weights that a recipe leaves as they are."""

from __future__ import annotations

from fnmatch import fnmatchcase

from zoo.errors import Problem, TrainingError, nearest, quoted
from zoo.spec import ModelSpec
from zoo.training.recipe import Recipe


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
        meant = {name for alias, name in stored.items() if fnmatchcase(alias, pattern)}
        if not meant:
            message = f"{quoted(pattern)} is the name of no weight of {spec.name}"
            place = recipe.document.place(("training", "frozen", number), value=True)
            raise TrainingError(Problem(message, place, _hint(pattern, list(stored))))
        found |= meant
    if len(found) == len(weights):
        place = recipe.document.place(("training", "frozen"), value=True)
        raise TrainingError(Problem("all weights are frozen, and none is left to train", place))
    return frozenset(found)


def _hint(pattern: str, weights: list[str]) -> str:
    """Return the pattern for a module's weights that is meant, or an example of one."""
    parts = [name.split(".") for name in weights]
    modules = [".".join(part[:end]) for part in parts for end in range(len(part) - 1, 0, -1)]
    every = list(dict.fromkeys([*(f"{module}.*" for module in modules), *weights]))
    if close := nearest(pattern if pattern.endswith("*") else f"{pattern}.*", every):
        return f"did you mean `{close}`?"
    return f"`*` stands for any text, as in `{parts[0][0]}.*`; `zoo show` shows the names"
