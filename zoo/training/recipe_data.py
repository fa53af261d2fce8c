"""The data that a recipe asks for, and whether it fits the model and the tokenizers. Imports no
torch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import InputError, TrainingError, placed, placing
from zoo.running.tokenizer_file import no_pairs
from zoo.training.data import DataReader
from zoo.training.data_tables import has_chats
from zoo.training.example import Example
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.recipe_tokens import known_tokens
from zoo.training.sides import Reader, Sides, data_of, is_of_decoder
from zoo.training.split import Splits
from zoo.training.start import Start
from zoo.training.tokens import AnyTokens, Tokens

if TYPE_CHECKING:
    from zoo.training.chats import Chats


def find_chats(start: Start) -> Chats | None:
    """What writes the chats of the data, if it has any. Raises as `known_tokens` and `chats_of`."""
    if not has_chats(start.recipe.data):
        return None
    tokens = known_tokens(start)
    assert tokens is not None  # `of_model`: others are not for chats
    assert start.saved is not None
    return chats_of(start.recipe, tokens, start.saved.folder)


def chats_of(recipe: Recipe, tokens: AnyTokens, folder: Path) -> Chats | None:
    """What writes the chats of the data, if it has any, for the model in a folder.

    Raises:
        TrainingError: the model has no chat template.
        WeightsError: a file is damaged.
    """
    if not has_chats(recipe.data):
        return None
    from zoo.training.chats import Chats  # Jinja is imported for chats alone

    assert isinstance(tokens, Tokens)  # of a decoder: `find_sides`
    try:
        return Chats.of(folder, tokens)
    except InputError as error:
        hint = "write one into a `chat_template.jinja` there"
        told = [problem._replace(help=hint) for problem in error.problems]
        raise placed(TrainingError(told), recipe.place("data", "messages")) from None


def find_data(recipe: Recipe, folder: Path, sides: Sides | None, chats: Chats | None) -> Splits:
    """Read the data of a recipe, with files relative to `folder`, for a model that learns these
    sides, and with `chats` to write chats. Raises as `DataReader`."""
    seed = recipe.head.seed if recipe.data.seed is None else recipe.data.seed
    with placing(recipe.place("data")):
        return _reader(recipe, folder, sides, chats).splits(seed)


def find_test(recipe: Recipe, folder: Path, sides: Sides, chats: Chats | None) -> list[Example]:
    """Read the test data of a recipe, and the other parts only if it is taken out of them. The
    arguments are those of `find_data`.

    Raises:
        TrainingError: as `DataReader`; or there is no test data.
    """
    if recipe.data.test == 0:
        raise recipe.error("the recipe has no test data", "data", "test")
    if isinstance(recipe.data.test, int):
        return find_data(recipe, folder, sides, chats).test
    with placing(recipe.place("data")):
        return _reader(recipe, folder, sides, chats).part("test")


def _reader(recipe: Recipe, folder: Path, sides: Sides | None, chats: Chats | None) -> DataReader:
    """What reads the data of a recipe. The arguments are those of `find_data`."""
    place_of, of_decoder = partial(recipe.place, "data"), sides is not None and is_of_decoder(sides)
    return DataReader(recipe.data, folder, place_of, of_decoder, chats)


def check_specials(recipe: Recipe, tokens: AnyTokens, splits: Splits) -> None:
    """Raise `TrainingError` if nothing is known that text begins with; or if the tokenizer of a
    model that reads whole texts cannot join the pairs of the data, or if its special tokens leave
    no room for others."""
    if not isinstance(tokens, ReaderTokens):
        if tokens.bos is None and splits.train[0].source is None:
            message = "no file beside the model says with which token a text begins"
            token = json.dumps(tokens.end, ensure_ascii=False)
            hint = f"state one in `[tokenizer]`, as `bos = {token}`"
            raise recipe.error(message, "tokenizer", help=hint)
        return
    with placing(recipe.place("tokenizer")):
        if splits.of_pairs and (problem := no_pairs(tokens.tokenizer, tokens.reader.token_types)):
            raise TrainingError(problem)
        n_special = len(tokens.added(pairs=splits.of_pairs))
    longest = recipe.training.max_length
    if longest <= n_special:
        message = f"max_length = {longest} leaves no room beside {n_special} special tokens"
        hint = "state a larger `max_length` in `[training]`"
        raise recipe.error(message, "training", "max_length", help=hint)


def check_sides(recipe: Recipe, sides: Sides, first: Example) -> None:
    """Raise `TrainingError` if the data, by its first example, is of another kind than a model with
    these sides learns from: text in place of pairs, pairs of texts where one is read, or words with
    labels where texts are read; or the reverse."""
    if is_of_decoder(sides) and first.second is None and not _has_lists(first):
        return
    predicts = sides.predicts if isinstance(sides, Reader) else None
    of_words = predicts == "classes_of_words"
    if (first.source is not None) != sides.has_source:
        wrong = "kind"
    elif isinstance(first.source, tuple) != of_words:
        wrong = "source"
    elif isinstance(first.target, tuple) != (of_words or predicts == "classes"):
        wrong = "target"
    elif first.second is not None and (of_words or predicts is None):
        wrong = "source"
    else:
        return
    kind, form = data_of(sides)
    message = f"the data is {_told_data(first)}, and the model learns from {kind}"
    raise recipe.error(message, "data", wrong, help=form)


def _has_lists(example: Example) -> bool:
    """Whether a side is a list, and not of a chat."""
    sides = (example.source, example.target)
    return example.opening is None and any(isinstance(side, tuple) for side in sides)


def _told_data(example: Example) -> str:
    """The kind of data that an example is of, in words."""
    if example.source is None:
        return "text"
    lists = isinstance(example.target, tuple)
    if isinstance(example.source, tuple):
        words = "words" if example.second is None else "words and second texts"
        return f"{words} with {'lists of labels' if lists else 'one label or target'}"
    if example.second is not None:
        return f"pairs of texts with {'lists of labels' if lists else 'labels'}"
    return "texts with lists of labels" if lists else "pairs"
