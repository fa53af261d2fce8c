"""The weights that a recipe leaves as they are, and those that get low-rank updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zoo.layout import MAPS
from zoo.spec import ModelSpec
from zoo.training.recipe import Recipe
from zoo.weights.matching import like, patterns_for
from zoo.wording import did_you_mean, quoted


def frozen_weights(recipe: Recipe, spec: ModelSpec) -> frozenset[str]:
    """Return the names of the parameters that the recipe freezes. A tied one is frozen by any of
    its names, as by `requires_grad_(False)` of a module. With `[lora]`, these are all but those
    that begin anew: of an adapted weight, only the update is trained.

    Raises:
        TrainingError: a pattern is for no parameter of the model, or none is left to train.
    """
    names = _parameters(spec)
    weights = frozenset(names.values())
    if recipe.lora is not None:
        return weights - begun_anew(recipe, spec)
    found: set[str] = set()
    for number, pattern in enumerate(recipe.training.frozen):
        found |= _named(pattern, names, recipe, ("training", "frozen", number), spec)
    if len(found) == len(weights):
        message = "all weights are frozen, and none is left to train"
        raise recipe.error(message, "training", "frozen")
    return frozenset(found)


def adapted_weights(recipe: Recipe, spec: ModelSpec) -> frozenset[str]:
    """Return the names of the weights that `[lora]` adapts; none without it.

    Raises:
        TrainingError: a pattern is for no weight; or for one that begins anew, or that is no matrix
            of a linear map, as a table of tokens, tied to the head or not, and a stack of experts.
    """
    if recipe.lora is None:
        return frozenset()
    found, names, new = set[str](), _parameters(spec), begun_anew(recipe, spec)
    for number, pattern in enumerate(recipe.lora.weights):
        path = ("lora", "weights", number)
        meant = _named(pattern, names, recipe, path, spec)
        for name in sorted(meant):
            tensor = spec.tensors[name]
            if tensor.role not in MAPS or len(tensor.shape) != 2:
                message = f"{quoted(pattern)} means `{name}`, which is no matrix of a linear map"
                raise recipe.error(message, *path, help=f"only these are adapted: {_maps(spec)}")
        if anew := meant & new:
            message = f"{quoted(pattern)} means `{min(anew)}`, which begins anew and is trained"
            raise recipe.error(message, *path, help="adapt weights that are taken")
        found |= meant
    return frozenset(found)


def begun_anew(recipe: Recipe, spec: ModelSpec) -> set[str]:
    """The stored names of the tensors that `new` means. Raises `TrainingError` if a pattern means
    none."""
    names = {name: name for name in spec.tensors} | dict(spec.ties)
    found: set[str] = set()
    for number, pattern in enumerate(recipe.head.new or ()):
        found |= _named(pattern, names, recipe, ("new", number), spec)
    return found


def _parameters(spec: ModelSpec) -> dict[str, str]:
    """The parameters of a spec by all their names, those that are tied included."""
    own = {name: name for name, tensor in spec.tensors.items() if not tensor.buffer}
    return own | dict(spec.ties)


def _named(
    pattern: str,
    names: Mapping[str, str],
    recipe: Recipe,
    path: tuple[str | int, ...],
    spec: ModelSpec,
) -> set[str]:
    """Those of `names` that a pattern means. Raises `TrainingError` if there are none."""
    if meant := like(pattern, names):
        return meant
    message = f"{quoted(pattern)} is the name of no weight of {spec.name}"
    raise recipe.error(message, *path, help=_hint(pattern, names))


def _maps(spec: ModelSpec) -> str:
    """Examples of patterns for the matrices of linear maps, by the end of their names."""
    ends = {
        f"*.{'.'.join(name.split('.')[-2:])}": None
        for name, tensor in spec.tensors.items()
        if tensor.role in MAPS and len(tensor.shape) == 2
    }
    return ", ".join(quoted(end) for end in ends)


def _hint(pattern: str, weights: Collection[str]) -> str:
    """Return the pattern for a module's weights that is meant, or an example of one."""
    first = next(iter(weights)).partition(".")[0]
    return did_you_mean(
        pattern if pattern.endswith("*") else f"{pattern}.*",
        patterns_for(weights),
        f"`*` stands for any text, as in `{first}.*`; `zoo show` shows the names",
    )
