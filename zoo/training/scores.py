"""Scores of a trained model: BLEU of its translations, its perplexity on text, or how many masked
tokens or labels it finds."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch

from zoo.errors import InputError, Place, Problem, TrainingError
from zoo.files.of_model import RECIPE
from zoo.generation import Beam, generate, quantize_weights
from zoo.generation.evaluating import evaluating
from zoo.generation.outputs import no_values
from zoo.loading import load
from zoo.machine.devices import input_device
from zoo.purpose import Generation
from zoo.registry import Registry, load_registry
from zoo.running.labels import published_config
from zoo.running.perplexity import OnProgress, perplexity, perplexity_data, unseen
from zoo.running.text_model import TextModel
from zoo.store.found_spec import read_source
from zoo.store.found_weights import find_weights
from zoo.training.batches import Row, batches, n_labels
from zoo.training.data import read_lines
from zoo.training.data_tables import is_text
from zoo.training.encoding import encode, encode_answers
from zoo.training.extras import imported
from zoo.training.lines import read_whole
from zoo.training.objective import collate, summed_loss
from zoo.training.published import read_published
from zoo.training.reader_scores import ReaderScores
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.recipe import Recipe, read_recipe
from zoo.training.recipe_data import chats_of, find_data
from zoo.training.sides import Sides, is_of_decoder, sides_of
from zoo.training.split import Example
from zoo.training.tokens import AnyTokens, Tokens, read_tokens
from zoo.transformer import Transformer


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
    BLEU, a language model by its perplexity, on the answers if it has learned these, a model that
    reads whole texts by what it predicts (`zoo.training.reader_scores`). With a file of text as
    `data`, any decoder with a tokenizer is measured: on each line, if it was trained on lines by
    its recipe, and otherwise on the text as a whole.

    Args:
        model: a folder, or the name of a registered model.
        data: the folder that the names of the recipe's data files are relative to, by default the
            model's folder; or a file of text.
        window, stride: for a text as a whole, as in `zoo.running.perplexity.perplexity`.
        device: the device of the computation.
        dtype: the dtype of the computation.
        weights: "int8" measures the model with its weights in 8 bits (`zoo.quantize_weights`).
        registry: where names are looked up; by default the layers around the working directory.
        on_progress: called with the number of sentences, lines or windows done, and the total.

    Returns:
        The result of `score_test` or of `zoo.running.perplexity.perplexity`.

    Raises:
        SpecError, WeightsError: the recipe or the weights are damaged.
        TrainingError: the data or the tokenizer is damaged, or there is nothing to measure on.
        InputError: the model does not predict text, or is on `meta`; or `weights` are others.
    """
    if weights not in (None, "int8"):
        raise InputError(f'`weights` are "int8", or as loaded, not {weights!r:.80}')
    registry = load_registry() if registry is None else registry
    folder = Path(model)
    if not os.path.isdir(folder):
        folder = find_weights(model, registry).path.parent
    options: dict[str, Any] = {"device": device, "dtype": dtype, "registry": registry}
    if data is not None and not isinstance(data, str | PathLike):
        hint = "write texts into a file, each on a line"
        raise InputError(Problem(f"`data` is the name of a file, not {data!r:.80}", help=hint))
    if data is not None and not os.path.exists(data):
        raise TrainingError(Problem("no such file or folder", Place(str(data))))
    names_text = data is not None and not os.path.isdir(data)
    if (folder / RECIPE).is_file():
        recipe = read_recipe(folder / RECIPE)
        sides = sides_of(read_source(str(folder), registry)[0])
        answers = sides is not None and is_of_decoder(sides) and not is_text(recipe.data)
        if not (answers and names_text):
            if window is not None or stride is not None:
                what = "this recipe's text are lines"
                if sides is not None and not is_text(recipe.data):
                    what = f"{_learner_of_pairs(sides)} is measured on pairs"
                raise InputError(f"a window is of a text as a whole, and {what}")
            found = load(model, **options)
            _prepare(found, weights)
            return _by_recipe(recipe, folder, found, data, on_progress)
    if data is None or not names_text:
        hint = (
            "name a folder that `zoo train` has made: its recipe tells the test data; or, for a "
            "decoder, a file of text: `--data FILE`"
        )
        raise TrainingError(Problem(f"there is no {RECIPE}", Place(str(folder)), hint))
    text, reader = read_whole(Path(data)), TextModel.load(model, **options)
    _prepare(reader.transformer, weights)
    return perplexity(reader, text, window=window, stride=stride, on_progress=on_progress)


def _prepare(model: Transformer, weights: Literal["int8"] | None) -> None:
    """Make a model that was loaded what is measured. Raises InputError if it has no values."""
    if input_device(model).type == "meta":
        raise no_values(model.spec.name)
    if weights is not None:
        quantize_weights(model)


def _by_recipe(
    recipe: Recipe,
    folder: Path,
    model: Transformer,
    data: str | Path | None,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The scores of a model that was trained by the recipe in its folder."""
    sides = sides_of(model.spec, model.origin)
    if sides is None:
        raise InputError(f"{model.spec.name} is not the model that this recipe has trained")
    origin = model.origin or {}
    config = published_config(origin.get("base", origin))  # whose tokenizer it has
    published = read_published(folder, config, sides)
    tokens = read_tokens(folder, recipe.tokenizer, sides, published)
    where = folder if data is None else Path(data)
    if where.is_dir():
        test = find_data(recipe, where, sides, chats_of(recipe, tokens, folder)).test
        if not test:
            raise recipe.error("the recipe has no test data", "data", "test")
    elif sides.has_source:
        learner = _learner_of_pairs(sides)
        hint = f"name the folder of the data files: {learner} is measured on pairs"
        raise TrainingError(Problem("this is not a folder", Place(str(where)), hint))
    else:
        test = read_lines(where)
    return score_test(model, tokens, test, recipe, on_progress)


def _learner_of_pairs(sides: Sides) -> str:
    """What a model that learns from pairs is called."""
    if is_of_decoder(sides):
        return "a model that answers"
    return "a translator" if isinstance(sides, Generation) else "a classifier"


def score_test(
    model: Transformer,
    tokens: AnyTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress = unseen,
) -> dict[str, Any]:
    """Measure a model on test data by what it is for, as `TextScores` or
    `zoo.training.reader_scores.ReaderScores`."""
    if isinstance(tokens, ReaderTokens):
        return ReaderScores(model, tokens, test, recipe, on_progress).measured()
    found = TextScores(model, tokens, test, recipe, on_progress)
    if test[0].source is None:
        return found.of_lines()
    return found.of_answers() if tokens.of_decoder else found.of_translations()


@dataclass(frozen=True)
class TextScores:
    """Measures a model that generates.

    Args:
        model: the model.
        tokens: its tokenizers.
        test: the examples.
        recipe: says how translations are searched for, and how many tokens are computed at a time.
        on_progress: called with the number of rows done, and the total.
    """

    model: Transformer
    tokens: Tokens
    test: Sequence[Example]
    recipe: Recipe
    on_progress: OnProgress

    def of_lines(self) -> dict[str, Any]:
        """The perplexity of lines, as `zoo.running.perplexity.perplexity_data` returns it. Each
        line is predicted by itself, with its end, which counts as a token and a byte; lines longer
        than `max_length` are cut into pieces, as in training."""
        rows = encode(self.test, self.tokens, max_length=self.recipe.training.max_length)
        n_bytes = sum(len(f"{example.target_text}\n".encode()) for example in self.test)
        return self._perplexity(rows, n_bytes)

    def of_answers(self) -> dict[str, Any]:
        """The perplexity of answers, given their prompts, in the same form. Each is predicted with
        its end, which counts as a token and a byte. Texts longer than `max_length` are left out.

        Raises:
            TrainingError: all are.
        """
        longest, end = self.recipe.training.max_length, self.tokens.end
        every = zip(self.test, encode_answers(self.test, self.tokens), strict=True)
        kept = [(example, row) for example, row in every if row.length <= longest]
        if not kept:
            message = f"all test data is longer than max_length = {longest}"
            raise self.recipe.error(message, "training", "max_length")
        answers = [answer.removesuffix(end) for example, _ in kept for answer in example.targets]
        n_bytes = sum(len(f"{answer}\n".encode()) for answer in answers)
        return self._perplexity([row for _, row in kept], n_bytes)

    def _perplexity(self, rows: Sequence[Row], n_bytes: int) -> dict[str, Any]:
        """The perplexity of what is predicted in these rows."""
        device = input_device(self.model)
        nats, done = 0.0, 0
        with torch.inference_mode(), evaluating(self.model):
            for places in self._batches(rows):
                batch = collate([rows[place] for place in places], self.tokens, device)
                nats += float(summed_loss(self.model, batch, label_smoothing=0.0))
                done += len(places)
                self.on_progress(done, len(rows))
        return perplexity_data(nats, n_labels(rows), n_bytes)

    def of_translations(self) -> dict[str, Any]:
        """Translate the sources of pairs, and score the result: BLEU (Papineni et al. 2002) as
        sacreBLEU computes it (Post 2018, arXiv:1804.08771), in percent, with sacreBLEU's signature.
        Both sides are in Unicode's form NFC: a tokenizer may write a letter and its accent as one
        character where a reference has two."""
        metric = imported("sacrebleu").BLEU()
        translations = [_composed(text) for text in self._translated()]
        references = [_composed(example.target_text) for example in self.test]
        score = metric.corpus_score(translations, [references]).score
        signature = str(metric.get_signature())
        return {"bleu": score, "signature": signature, "pairs": len(self.test)}

    def _translated(self) -> list[str]:
        """Translate the sources by beam search, in batches of similar lengths. Sources longer than
        the training sequences are truncated."""
        evaluation, longest = self.recipe.evaluation, self.recipe.training.max_length
        sources = self.tokens.encode_sources([example.source_text for example in self.test])
        rows = [Row(ids[:longest], ()) for ids in sources]
        method = Beam(
            size=evaluation.beam, length_penalty=evaluation.length_penalty, length_formula="gnmt"
        )
        translations: dict[int, str] = {}
        for places in self._batches(rows):
            found = generate(
                self.model,
                [rows[place].source or () for place in places],
                max_new_tokens=longest - 1,
                method=method,
                eos=self.tokens.eos,
                start=self.tokens.begin,
            )
            decoded = self.tokens.decode_targets([one.ids for one in found])
            translations.update(zip(places, decoded, strict=True))
            self.on_progress(len(translations), len(rows))
        return [translations[place] for place in range(len(rows))]

    def _batches(self, rows: Sequence[Row]) -> list[list[int]]:
        """The places of rows, in batches of similar lengths."""
        return batches(rows, tokens=self.recipe.evaluation.batch_tokens, seed=0, epoch=0)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)
