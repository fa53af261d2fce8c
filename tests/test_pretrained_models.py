"""The models of this repository match their cards and do their tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import zoo
from zoo.training.recipe import read_recipe
from zoo.weights.reader import read_header

ROOT = Path(__file__).parent.parent
MODELS = sorted((ROOT / "pretrained").iterdir())


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_model_is_what_its_card_says(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    header = read_header(folder / "model.safetensors")
    assert f"`{header.content_digest}`" in card
    model = zoo.load(folder)
    assert f"{model.spec.n_parameters:,}" in card
    assert re.search(r"^license: \S+$", card, re.MULTILINE)
    recipe = ROOT / "recipes" / folder.name / "recipe.toml"
    assert (folder / "recipe.toml").read_text() == recipe.read_text()
    assert model.spec == zoo.read_spec(recipe.parent / read_recipe(recipe).head.model)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 20_000_000


def translated(folder: Path, text: str) -> str:
    """Return the output of a model for a text, using only the files of its folder."""
    source = Tokenizer.from_file(str(folder / "tokenizer.json"))
    other = folder / "tokenizer_target.json"
    target = Tokenizer.from_file(str(other)) if other.exists() else source
    ids = json.loads((folder / "generation_config.json").read_text())
    (found,) = zoo.generate(
        zoo.load(folder, dtype=torch.float32),
        [source.encode(text).ids],
        max_new_tokens=30,
        eos=ids["eos_token_id"],
        start=ids["decoder_start_token_id"],
    )
    return str(target.decode(found.ids))


@pytest.mark.parametrize(
    ("german", "english"),
    [
        ("Ich möchte ein Bier.", "I want a beer."),
        ("Tom hat einen Hund.", "Tom has a dog."),
        ("Es regnet.", "It's raining."),
    ],
)
def test_tatoeba_de_en_translates(german: str, english: str) -> None:
    folder = ROOT / "pretrained" / "transformer-small.tatoeba-de-en"
    assert translated(folder, german) == english


def test_beer_de_en_orders_a_beer() -> None:
    folder = ROOT / "pretrained" / "beer-de-en"
    assert translated(folder, "ich mochte ein bier") == "i want a beer"
    assert translated(folder, "Ich möchte ein Bier.") == "i want a beer"
    assert zoo.score(folder, data=ROOT / "recipes" / "beer-de-en")["bleu"] == pytest.approx(100)


def test_beer_de_en_is_learned_by_its_recipe(tmp_path: Path) -> None:
    report = zoo.train(ROOT / "recipes" / "beer-de-en" / "recipe.toml", output=tmp_path / "beer")
    assert report is not None
    assert report["loss"] < 1e-3
    assert translated(tmp_path / "beer", "ich mochte ein bier") == "i want a beer"
