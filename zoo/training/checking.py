"""A recipe checked without training: `zoo validate recipe.toml`. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zoo.errors import Problem, SpecError, noted
from zoo.registry import Registry
from zoo.spec import ModelSpec
from zoo.training.data_tables import Datasets, has_chats
from zoo.training.labels import with_labels
from zoo.training.recipe import Recipe
from zoo.training.recipe_data import check_sides, check_specials, find_chats, find_data
from zoo.training.recipe_tokens import known_tokens
from zoo.training.split import Splits
from zoo.training.start import find_start


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
    start = splits = chats = tokens = None
    with noted(problems):
        start = find_start(recipe, registry)
        chats = find_chats(start)
        tokens = chats.tokens if chats else known_tokens(start)
    if not isinstance(recipe.data, Datasets) and (chats or not has_chats(recipe.data)):
        with noted(problems):
            splits = find_data(recipe, folder, None if start is None else start.sides, chats)
    if start is not None and splits is not None:
        with noted(problems):
            check_sides(recipe, start.sides, splits.train[0])
            start = with_labels(start, splits, folder)
        with noted(problems):
            if tokens is not None:
                check_specials(recipe, tokens, splits)
    if problems or start is None:
        raise SpecError(problems)
    return Checked(start.spec, splits)
