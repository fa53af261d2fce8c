"""What a model is measured on, and by which scores: `zoo score`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

from zoo.errors import InputError, Place, TrainingError
from zoo.files.of_model import RECIPE
from zoo.generation import quantize_weights
from zoo.generation.outputs import no_values
from zoo.loading import OpenModel, open_model
from zoo.provenance.origin import published_config
from zoo.purpose import Generation
from zoo.registry import Registry
from zoo.running.perplexity import OnProgress, perplexity, unseen
from zoo.running.text_model import TextModel
from zoo.training.data import read_lines
from zoo.training.data_tables import has_chats, is_text
from zoo.training.example import Example
from zoo.training.labels import check_labels, labels_in
from zoo.training.lines import read_whole
from zoo.training.objective import Objective, objective_of
from zoo.training.published import read_published
from zoo.training.recipe import Recipe, read_recipe
from zoo.training.recipe_data import chats_of, check_sides, find_test
from zoo.training.sides import find_sides, is_of_decoder, sides_of
from zoo.training.tokens import read_tokens


def score(
    model: str | Path,
    *,
    data: str | Path | None = None,
    window: int | None = None,
    stride: int | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    weights: Literal["int8"] | None = None,
    registry: Registry | None = None,
    on_progress: OnProgress = unseen,
) -> dict[str, Any]:
    """Measure a model: its translations, how well it predicts a text, or what it finds in texts.

    A model that was trained by a recipe is measured on the test data of the recipe: a translator by
    BLEU; a language model by its perplexity, or by that of the answers, if it has learned these; a
    masked language model by the accuracy and the perplexity of masked tokens; a classifier by
    accuracy and F1, or for numbers by correlations. With a file of text as `data`, the perplexity
    of any decoder with a tokenizer is measured: on each line, if it was trained on lines by its
    recipe, and otherwise on the text as a whole.

    Args:
        model: a folder, or the name of a registered model.
        data: the folder that the names of the recipe's data files are relative to, by default the
            model's folder; or a file of text.
        window, stride: for a text as a whole: how many tokens the model reads at once, by default
            1,024 or all of its positions if these are fewer; and by how many tokens the window then
            moves on, by default half a window.
        device: the device of the computation.
        dtype: the dtype of the computation.
        weights: "int8" measures the model with its weights in 8 bits (`zoo.quantize_weights`).
        registry: where names are looked up; by default the layers around the working directory.
        on_progress: called with the number of sentences, lines or windows done, and the total.

    Returns:
        The scores by their names, as in `metrics.json`, such as `bleu`, `accuracy`, or `perplexity`
        and `bits_per_byte`, with the numbers of `tokens` and `bytes` that were predicted.

    Raises:
        SpecError, WeightsError: the recipe or the weights are damaged.
        TrainingError: the data or the tokenizer is damaged, or there is nothing to measure on.
        InputError: the model does not predict text, or is on `meta`; or `weights` are others.
    """
    if weights not in (None, "int8"):
        raise InputError(f'`weights` are "int8", or as loaded, not {weights!r:.80}')
    if data is not None and not isinstance(data, str | PathLike):
        hint = "write texts into a file, each on a line"
        raise InputError(f"`data` is the name of a file, not {data!r:.80}", help=hint)
    if data is not None and not os.path.exists(data):
        raise TrainingError("no such file or folder", Place(str(data)))
    file = None if data is None or os.path.isdir(data) else Path(data)
    measure: Callable[..., dict[str, Any]]
    with open_model(model, device=device, dtype=dtype, registry=registry) as opened:
        if opened.device.type == "meta":
            raise no_values(opened.spec.name)
        stated = opened.folder / RECIPE
        recipe = read_recipe(stated) if stated.is_file() else None
        if file is not None and (recipe is None or _has_learned_answers(recipe, opened)):
            text, reader = read_whole(file), TextModel.of(opened)
            transformer = reader.transformer
            measure = partial(perplexity, reader, text, window=window, stride=stride)
        elif recipe is None:
            hint = (
                "name a folder that `zoo train` has made: its recipe tells the test data; or, for "
                "a decoder, a file of text: `--data FILE`"
            )
            raise TrainingError(f"there is no {RECIPE}", Place(str(opened.folder)), hint)
        elif window is not None or stride is not None:
            is_chat = has_chats(recipe.data)
            what = "lines" if is_text(recipe.data) else "chats" if is_chat else "pairs"
            raise InputError(f"a window is of a text as a whole, and this recipe's data are {what}")
        else:
            objective, test = _learned(recipe, opened, data)
            transformer = opened.read()
            measure = partial(objective.scores, transformer, test, recipe)
    if weights is not None:
        quantize_weights(transformer)
    return measure(on_progress=on_progress)


def _has_learned_answers(recipe: Recipe, opened: OpenModel) -> bool:
    """Whether a model is a decoder that learned answers by its recipe, so that it can be measured
    on a text as one without a recipe."""
    sides = None if is_text(recipe.data) else sides_of(opened.spec)
    return sides is not None and is_of_decoder(sides)


def _learned(
    recipe: Recipe, opened: OpenModel, data: str | Path | None
) -> tuple[Objective, list[Example]]:
    """What a model has learned by the recipe in its folder, and what this is measured on. Raises as
    `score`."""
    origin, folder = opened.weights.header.origin, opened.folder
    sides = find_sides(recipe, opened.spec, origin)  # the recipe may be that of another model
    config = published_config((origin or {}).get("base", origin))  # whose tokenizer it has
    published = read_published(folder, config, sides)
    tokens = read_tokens(folder, recipe.tokenizer, sides, published)
    labels = labels_in(opened.spec, origin)
    where = folder if data is None else Path(data)
    if where.is_dir():
        test = find_test(recipe, where, sides, chats_of(recipe, tokens, folder))
        check_sides(recipe, sides, test[0])
        check_labels(recipe, sides, test, labels, where)
    elif sides.has_source:
        learner = "a translator" if isinstance(sides, Generation) else "a classifier"
        hint = f"name the folder of the data files: {learner} is measured on pairs"
        raise TrainingError("this is not a folder", Place(str(where)), hint)
    else:
        test = read_lines(where)
    return objective_of(recipe, tokens, labels), test
