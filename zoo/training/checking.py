"""A recipe checked without training: `zoo validate recipe.toml`. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zoo.errors import Problem, SpecError, ZooError, noted, placed
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.training.data_tables import Datasets, messages_of
from zoo.training.labels import with_labels
from zoo.training.recipe import Recipe
from zoo.training.recipe_tokens import check_tokenizer
from zoo.training.split import Splits
from zoo.training.start import check_sides, check_specials, find_chats, find_data, find_start


class Checked(NamedTuple):
    """The model and the data of a checked recipe."""

    spec: ModelSpec
    splits: Splits | None
    """None for a data set of the package `datasets`, which might have to be downloaded."""


def check_recipe(recipe: Recipe, folder: Path, registry: Registry) -> Checked:
    """Check the model, the data and the tokenizer files of a recipe, and whether they fit each
    other, as training does before it starts.

    Args:
        recipe: a valid recipe.
        folder: the folder that the names of data files are relative to.
        registry: where names are looked up.

    Raises:
        SpecError: every problem found, each with its place.
    """
    problems: list[Problem] = []
    start = splits = chats = None
    with noted(problems):
        start = find_start(recipe, registry)
        chats = find_chats(start)
    if not isinstance(recipe.data, Datasets) and (chats or messages_of(recipe.data) is None):
        with noted(problems):
            splits = find_data(recipe, folder, None if start is None else start.sides, chats)
    if start is not None and splits is not None:
        with noted(problems):
            check_sides(start, splits)
            start = with_labels(start, splits, folder)
    if start is not None:
        with noted(problems):
            try:
                beside = None if start.saved is None else start.saved.folder
                tokens = check_tokenizer(
                    recipe.tokenizer, start.sides, recipe.folder, beside, start.published
                )
                if tokens is not None and splits is not None:
                    check_specials(recipe, tokens, splits)
            except ZooError as error:
                raise placed(error, recipe.document.place(("tokenizer",))) from None
    if problems or start is None:
        raise SpecError(dict.fromkeys(problems))
    return Checked(start.spec, splits)
