"""How good a model's translations are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.errors import Place, Problem, TrainingError
from zoo.generation import Beam, generate
from zoo.loading import load
from zoo.model_files import RECIPE
from zoo.registry import Registry, load_registry
from zoo.training.batches import Row, batches
from zoo.training.extras import imported
from zoo.training.recipe import Recipe, read_recipe
from zoo.training.split import Example
from zoo.training.start import find_data
from zoo.training.tokens import Tokens, read_tokens
from zoo.transformer import Transformer


def score(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    device: str | torch.device = "cpu",
    registry: Registry | None = None,
) -> dict[str, Any]:
    """Measure a trained model again, on the test data of its recipe.

    Args:
        folder: what `zoo.train` has left: the weights, the tokenizer and the recipe.
        data: what the names of data files are relative to; the folder unless given.
        device: where it computes; in float32.
        registry: where names are looked up; the layers around the working directory unless given.

    Returns:
        As `score_translations`.

    Raises:
        SpecError, WeightsError: the recipe or the weights are damaged.
        TrainingError: the data or the tokenizer is; or there are no pairs to measure on.
    """
    folder = Path(folder)
    registry = load_registry() if registry is None else registry
    if not (folder / RECIPE).is_file():
        hint = "name a folder that `zoo train` has made: its recipe tells the test data"
        raise TrainingError(Problem(f"there is no {RECIPE}", Place(str(folder)), hint))
    recipe = read_recipe(folder / RECIPE)
    model = load(folder, device=device, dtype=torch.float32, registry=registry)
    sides = model.spec.model.generation
    test = find_data(recipe, folder if data is None else Path(data)).test
    if sides is None or not test or test[0].source is None:
        place = recipe.document.place(("data", "test"), value=True)
        raise TrainingError(Problem("the recipe has no test data of pairs", place))
    return score_translations(model, read_tokens(folder, recipe.tokenizer, sides), test, recipe)


def score_translations(
    model: Transformer, tokens: Tokens, test: Sequence[Example], recipe: Recipe
) -> dict[str, Any]:
    """Translate the sources of pairs, and score the result: BLEU (Papineni et al. 2002) as
    sacreBLEU computes it (Post 2018, arXiv:1804.08771), in percent, with the signature that tells
    how."""
    translations = translate(model, tokens, [example.source or "" for example in test], recipe)
    metric = imported("sacrebleu").BLEU()
    found = metric.corpus_score(translations, [[example.target for example in test]])
    return {"bleu": found.score, "signature": str(metric.get_signature()), "pairs": len(test)}


def translate(
    model: Transformer, tokens: Tokens, texts: Sequence[str], recipe: Recipe
) -> list[str]:
    """Translate texts by beam search, in batches of like lengths; what is longer than the sequences
    that were learned from is cut."""
    evaluation, longest = recipe.evaluation, recipe.training.max_length
    rows = [Row(ids[:longest], ()) for ids in tokens.encode_sources(texts)]
    method = Beam(
        size=evaluation.beam, length_penalty=evaluation.length_penalty, length_formula="gnmt"
    )
    translations: dict[int, str] = {}
    for places in batches(rows, tokens=evaluation.batch_tokens, seed=0, epoch=0):
        found = generate(
            model,
            [rows[place].source or () for place in places],
            max_new_tokens=longest - 1,
            method=method,
            eos=tokens.eos,
            start=tokens.bos,
        )
        decoded = tokens.decode_targets([one.ids for one in found])
        translations.update(zip(places, decoded, strict=True))
    return [translations[place] for place in range(len(rows))]
