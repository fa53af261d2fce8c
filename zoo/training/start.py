"""Finding the model and the data of a recipe before training starts. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import Problem, TrainingError, ZooError, placed
from zoo.purpose import Generation
from zoo.reading import read_source
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.store.found_weights import find_weights
from zoo.training.data import read_data
from zoo.training.frozen import frozen_weights
from zoo.training.published import UNPUBLISHED, Published, read_published
from zoo.training.recipe import Recipe
from zoo.training.split import Splits
from zoo.training.tables import OfModel
from zoo.training.tokens import folder_of
from zoo.weights.file import weights_path
from zoo.wording import quoted, typed


class Start(NamedTuple):
    """The model of a recipe."""

    source: str
    """Its name or its path; by its name, a model in the store is checked when it is loaded."""
    spec: ModelSpec
    weights: Path | None
    """The weights of the saved model that training starts from, if it starts from one."""
    origin: dict[str, Any] | None
    """Where these weights came from, if the zoo has not made them."""
    sides: Generation
    """The vocabularies of the model."""
    frozen: frozenset[str]
    """The names of the weights that are not trained."""
    published: Published = UNPUBLISHED
    """The special ids of the saved model, if its tokenizers are used."""


def find_start(recipe: Recipe, registry: Registry) -> Start:
    """Find the model that a recipe names.

    Raises:
        ZooError: it does not exist, or its spec or its file is wrong.
        TrainingError: it cannot be trained by a recipe, or not on sequences of this length.
    """
    folder, place = recipe.folder, recipe.document.place(("model",), value=True)
    beside = folder / recipe.head.model
    source = str(beside) if beside.exists() else recipe.head.model
    if beside.suffix == ".toml" and not Path(source).exists() and weights_path(folder).exists():
        raise TrainingError(
            Problem(
                f"there is no spec {quoted(source)}",
                place,
                help="the model beside the recipe holds it: "
                f"`zoo show {typed(folder)} --resolved > {typed(beside)}`",
            )
        )
    near = f"{recipe.head.model}.toml"
    if not Path(source).exists() and (folder / near).is_file():
        published = registry.catalog.file(source.partition("@")[0])
        if source not in registry.models and published is None:
            message = f"there is no file and no model {quoted(source)}"
            raise TrainingError(Problem(message, place, f"did you mean `{near}`?"))
    try:
        spec, header = read_source(source, registry)
        _ = spec.n_parameters  # raises if the layout is wrong
    except ZooError as error:
        raise placed(error, place) from None
    sides, frozen = _sides(recipe, spec), frozen_weights(recipe, spec)
    if header is None:
        return Start(source, spec, None, None, sides, frozen)
    weights = find_weights(source, registry).path
    specials = UNPUBLISHED
    if isinstance(recipe.tokenizer, OfModel):
        config = (header.origin or {}).get("config")
        specials = read_published(folder_of(weights), config, has_source=sides.has_source)
    return Start(source, spec, weights, header.origin, sides, frozen, specials)


def _sides(recipe: Recipe, spec: ModelSpec) -> Generation:
    found = spec.model.generation
    if found is None or not found.from_ids:
        raise TrainingError(
            Problem(
                f"{spec.name} cannot be trained by a recipe",
                recipe.document.place(("model",), value=True),
                help="that takes a decoder, or an encoder and a decoder, from tokens to tokens, "
                "with a head that scores the vocabulary",
            )
        )
    if found.looks_ahead:
        raise TrainingError(
            Problem(
                f"{spec.name} would see the tokens that it has to predict: "
                f"{', '.join(found.looks_ahead)}",
                recipe.document.place(("model",), value=True),
                help="a recipe trains models whose positions see no later ones",
            )
        )
    limits = [limit for limit in (found.longest, found.longest_source) if limit is not None]
    if limits and recipe.training.max_length > min(limits):
        raise TrainingError(
            Problem(
                f"sequences of max_length = {recipe.training.max_length} tokens do not fit: "
                f"{spec.name} has positions for {min(limits)}",
                recipe.document.place(("training", "max_length"), value=True),
                help=f"state `max_length = {min(limits)}` in `[training]`",
            )
        )
    return found


def find_data(recipe: Recipe, folder: Path) -> Splits:
    """Read the data of a recipe, with files relative to `folder`. Raises as `read_data`."""
    place = recipe.document.place
    try:
        return read_data(
            recipe.data,
            folder,
            recipe.head.seed,
            lambda part: place(("data", part), value=True),
        )
    except TrainingError as error:
        raise placed(error, place(("data",))) from None


def check_sides(recipe: Recipe, start: Start, splits: Splits) -> None:
    """Raise `TrainingError` if a model of pairs is to be trained on text, or the reverse."""
    has_source = splits.train[0].source is not None
    if has_source == start.sides.has_source:
        return
    what = "pairs" if has_source else "text"
    needs = "text, one line for each example" if has_source else "pairs of source and target"
    help = (
        'a decoder learns from `kind = "text"`'
        if has_source
        else 'pairs are of `kind = "tsv"` or `"parallel"`; text is for a decoder'
    )
    place = recipe.document.place(("data", "kind"), value=True)
    message = f"the data is {what}, and the model learns from {needs}"
    raise TrainingError(Problem(message, place, help))
