"""Scores of models that read texts as a whole: how many masked tokens, classes of texts or classes
of words they find, and how near their numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from zoo.errors import TrainingError
from zoo.generation.evaluating import evaluating
from zoo.machine.devices import input_device
from zoo.running.entities import OUTSIDE, marks_entities
from zoo.running.labels import read_labels
from zoo.running.perplexity import OnProgress, perplexity_of
from zoo.training.batches import IGNORED, Labelled, ReadRow, Valued, batches, n_labels
from zoo.training.correlation import pearson, spearman
from zoo.training.encoding import encode_read
from zoo.training.f1 import entity_scores, macro_f1, micro_and_macro_f1
from zoo.training.masking import make_masker
from zoo.training.objective import AnyBatch, collate, loss_and_hits, scores
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.split import Example
from zoo.transformer import Transformer


def score_reader(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Measure a model on test data by what it predicts: `score_masked`, `score_classes`,
    `score_several`, `score_numbers` or `score_words`."""
    measure = {
        "masked_tokens": score_masked,
        "class": score_classes,
        "classes": score_several,
        "number": score_numbers,
        "classes_of_words": score_words,
    }[tokens.reader.predicts]
    return measure(model, tokens, test, recipe, on_progress)


def score_masked(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """How well masked tokens of lines are filled in: the share that gets the highest score
    (`accuracy`), and exp of their mean cross-entropy in nats (`masked_perplexity`). They are drawn
    as in the training, and for the same lines are always the same.

    Raises:
        TrainingError: there are none to be drawn.
    """
    encoded = encode_read(test, tokens, max_length=recipe.training.max_length)
    rows = make_masker(recipe, tokens).held_out(encoded)
    if not rows:
        raise TrainingError("the texts have special tokens alone, and none to be filled in")
    sums = torch.zeros(2, dtype=torch.float64)
    for _, batch in _read_batches(model, tokens, rows, recipe, on_progress):
        sums += loss_and_hits(model, batch).cpu()
    n_tokens = n_labels(rows)
    nats, hits = (sums / n_tokens).tolist()
    return {
        "accuracy": hits,
        "masked_perplexity": perplexity_of(nats),
        "masked_tokens": n_tokens,
    }


def score_classes(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The share of texts that are classified as they are labelled (`accuracy`), and the mean over
    the classes that are found or are right of the F1 score of each (`macro_f1`)."""
    longest = recipe.training.max_length
    rows = encode_read(test, tokens, max_length=longest, labels=_names(model))
    found: dict[int, int] = {}
    for places, batch in _read_batches(model, tokens, rows, recipe, on_progress):
        found.update(zip(places, scores(model, batch).argmax(-1).tolist(), strict=True))
    right = [row.labels[0] for row in rows if isinstance(row, Labelled)]
    pairs = [(one, found[place]) for place, one in enumerate(right)]
    return {
        "accuracy": sum(right == guess for right, guess in pairs) / len(pairs),
        "macro_f1": macro_f1(pairs),
        "texts": len(pairs),
    }


def score_several(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The `micro_f1` and `macro_f1` of several classes of each text, of which those with a
    probability above 0.5 are found, as `zoo.training.f1.micro_and_macro_f1`."""
    rows, outputs = _valued(model, tokens, test, recipe, on_progress, labels=_names(model))
    right = [[value > 0.5 for value in row.values] for row in rows]
    micro, macro = micro_and_macro_f1(right, [[score > 0 for score in one] for one in outputs])
    return {"micro_f1": micro, "macro_f1": macro, "texts": len(rows)}


def score_numbers(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The correlations of the numbers that the model makes with those that are right, `pearson` and
    `spearman`, None if all are equal; and the root of the mean squared error (`rmse`)."""
    rows, outputs = _valued(model, tokens, test, recipe, on_progress)
    right, found = [row.values[0] for row in rows], [one[0] for one in outputs]
    errors = [(one - other) ** 2 for one, other in zip(right, found, strict=True)]
    return {
        "pearson": pearson(right, found),
        "spearman": spearman(right, found),
        "rmse": math.sqrt(sum(errors) / len(errors)),
        "texts": len(rows),
    }


def _valued(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
    *,
    labels: Sequence[str] = (),
) -> tuple[list[Valued], list[list[float]]]:
    """The rows of examples with values, and the model's outputs for each."""
    rows = encode_read(test, tokens, max_length=recipe.training.max_length, labels=labels)
    found: dict[int, list[float]] = {}
    for places, batch in _read_batches(model, tokens, rows, recipe, on_progress):
        found.update(zip(places, scores(model, batch).tolist(), strict=True))
    valued = [row for row in rows if isinstance(row, Valued)]
    return valued, [found[place] for place in range(len(rows))]


def score_words(
    model: Transformer,
    tokens: ReaderTokens,
    test: Sequence[Example],
    recipe: Recipe,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The share of words whose label is found (`accuracy`), and if the labels mark entities, the
    `precision`, `recall` and `f1` of `zoo.training.f1.entity_scores`. Words that are cut off, and
    those without a token, are not found: they count as words that are in no entity."""
    names, longest = _names(model), recipe.training.max_length
    encoded = tokens.encode_words([example.words for example in test], longest=longest)
    rows = [Labelled(one.ids, [IGNORED] * len(one.ids)) for one in encoded]
    found: dict[int, list[str]] = {}
    for places, batch in _read_batches(model, tokens, rows, recipe, on_progress):
        best = scores(model, batch).argmax(-1).view(len(places), -1).tolist()
        for place, classes in zip(places, best, strict=True):
            first = encoded[place].first
            found[place] = [OUTSIDE if at is None else names[classes[at]] for at in first]
    pairs = [
        (label, guess, at is not None)
        for place, example in enumerate(test)
        for label, guess, at in zip(example.labels, found[place], encoded[place].first, strict=True)
    ]
    hits = sum(label == guess and read for label, guess, read in pairs)
    scored: dict[str, Any] = {"accuracy": hits / len(pairs), "words": len(pairs)}
    if marks_entities(names):
        right = [example.labels for example in test]
        scored |= entity_scores(right, [found[place] for place in range(len(test))])._asdict()
    return scored


def _names(model: Transformer) -> list[str]:
    """The names of the classes of a model, in their order."""
    names = read_labels(model).id2label
    return [names[number] for number in sorted(names)]


def _read_batches(
    model: Transformer,
    tokens: ReaderTokens,
    rows: Sequence[ReadRow],
    recipe: Recipe,
    on_progress: OnProgress,
) -> Iterator[tuple[list[int], AnyBatch]]:
    """The batches of rows, each with their places, while the model is in evaluation mode."""
    device, done = input_device(model), 0
    with torch.inference_mode(), evaluating(model):
        for places in batches(rows, tokens=recipe.evaluation.batch_tokens, seed=0, epoch=0):
            yield places, collate([rows[place] for place in places], tokens, device)
            done += len(places)
            on_progress(done, len(rows))
