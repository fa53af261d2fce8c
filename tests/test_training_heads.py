"""Labels of a classifier, weights from a model with another head, and what of both is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from toy_encoders import CLASSES, LABELLED, MODEL, RECIPE, RECIPE_OF_CLASSES, VOCAB, write_encoder
from toy_training import in_processes
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)

import zoo
from zoo.cli import run
from zoo.running.labels import labels_of

Train = Callable[..., dict[str, Any]]
BERT = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
}
FROM_OTHER = RECIPE_OF_CLASSES.replace(
    '"model.toml"', '"model.toml"\nweights = "filler"\nnew = ["head.*"]'
).replace("steps = 8", "steps = 1")


@pytest.fixture
def train(project: Path) -> Train:
    """Return a function that trains in the working directory and returns the metrics."""

    def made(out: str, recipe: str, model: str = MODEL, **options: Any) -> Any:
        return zoo.train(write_encoder(project, recipe, model), output=out, **options)

    return made


def tensors(path: str | Path) -> dict[str, torch.Tensor]:
    return dict(zoo.load(path).state_dict())


def names(path: str | Path) -> tuple[str, ...]:
    model = zoo.load(path)
    found = labels_of(model.spec, model.origin).id2label
    return tuple(found[number] for number in sorted(found))


# --- weights of another model -------------------------------------------------------------------


def test_a_new_head_on_a_saved_model(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """What is taken is the saved model's, and what is new that of the spec and the seed."""
    train("filler", RECIPE)
    recipe = FROM_OTHER.replace("lr = 1e-2", "lr = 1e-30\nweight_decay = 0.0")
    of_model = 'kind = "of_model"\npad = "[PAD]"'
    recipe = recipe.replace('kind = "files"\nsource = "words.json"\npad = "[PAD]"', of_model)
    capsys.readouterr()
    train("out", recipe, CLASSES)
    assert "not taken from `filler`: head.*\n" in capsys.readouterr().err
    found, before = tensors("out"), tensors("filler")
    new = zoo.build(CLASSES, seed=0).state_dict()
    assert {name for name in found if name.startswith("head.")} == {
        "head.dense.weight",
        "head.dense.bias",
        "head.out.weight",
        "head.out.bias",
    }
    for name, tensor in found.items():
        expected = new[name] if name.startswith("head.") else before[name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-20)
    assert Path("out/tokenizer.json").read_bytes() == Path("filler/tokenizer.json").read_bytes()
    part = (zoo.load("out").origin or {})["part"]
    assert part["new"] == ["head.*"]
    assert zoo.TextModel.load("out").run(["a x is u"])[0]["task"] == "classify"


@pytest.mark.parametrize("shard", ["false", "true"])
def test_a_new_head_in_two_processes(train: Train, project: Path, shard: str) -> None:
    train("filler", RECIPE)
    recipe = FROM_OTHER.replace("steps = 1", f"steps = 3\nshard = {shard}")
    recipe = recipe.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    lean = CLASSES.replace("0.1", "0.0")
    alone = train("alone", recipe, lean)
    in_processes("train", "recipe.toml", "-o", "two", processes=2, timeout=300, cwd=project)
    two = json.loads(Path("two/metrics.json").read_text())
    assert two["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)


def test_an_encoder_that_is_frozen_under_a_new_head(train: Train) -> None:
    train("filler", RECIPE)
    train("out", FROM_OTHER.replace("steps = 1", 'steps = 3\nfrozen = ["encoder.*"]'), CLASSES)
    found, before = tensors("out"), tensors("filler")
    shared = [name for name in found if name.startswith("encoder.")]
    assert all(torch.equal(found[name], before[name]) for name in shared)
    assert not torch.equal(
        found["head.out.weight"], zoo.build(CLASSES).state_dict()["head.out.weight"]
    )


def imported(cls: Any, folder: str, **config: Any) -> Any:
    torch.manual_seed(0)
    theirs = cls(BertConfig(**BERT, **config))
    theirs.save_pretrained("source")
    zoo.import_folder("source", folder)
    return theirs


def test_a_new_head_on_an_imported_model(train: Train, project: Path) -> None:
    """The spec of a BERT with another head is that of the checkpoint, printed, with this head."""
    theirs = imported(BertForMaskedLM, "bert")
    spec = zoo.load("bert").spec.to_dict()
    spec["head"] = {"kind": "classifier", "n_classes": 3}
    (project / "model.json").write_text("")
    recipe = FROM_OTHER.replace('"filler"', '"bert"').replace("lr = 1e-2", "lr = 1e-30")
    text = zoo.read_spec(spec).to_toml()
    train("out", recipe.replace("weight_decay", "#"), text)
    table = tensors("out")["encoder.embed.tokens.weight"]
    torch.testing.assert_close(table, theirs.get_input_embeddings().weight.detach())


# --- labels -------------------------------------------------------------------------------------


def test_labels_come_from_the_recipe_the_model_or_the_data(train: Train) -> None:
    short = RECIPE_OF_CLASSES.replace("steps = 8", "steps = 1")
    train("data", short, CLASSES)
    assert names("data") == ("beside", "over", "under")
    spec = CLASSES.replace("n_classes = 3", 'n_classes = 3, labels = ["over", "under", "beside"]')
    train("spec", short, spec)
    assert names("spec") == ("over", "under", "beside")
    assert zoo.load("spec").spec == zoo.read_spec(spec)
    stated = short.replace("seed", "#").replace(
        '"model.toml"', '"model.toml"\nlabels = ["under", "over", "beside"]'
    )
    train("recipe", stated, spec)
    assert names("recipe") == ("under", "over", "beside")
    # A model that is trained further keeps its own.
    train("further", short.replace('"model.toml"', '"recipe"'), CLASSES)
    assert names("further") == ("under", "over", "beside")


def test_an_imported_classifier_is_trained_further_and_exported(
    train: Train, project: Path
) -> None:
    own = {0: "under", 1: "beside", 2: "over"}
    imported(
        BertForSequenceClassification,
        "bert",
        id2label=own,
        label2id={label: number for number, label in own.items()},
    )
    recipe = RECIPE_OF_CLASSES.replace('"model.toml"', '"bert"')
    train("out", recipe, CLASSES)
    assert names("out") == ("under", "beside", "over")
    assert zoo.load("out").spec == zoo.load("bert").spec  # they are where they were
    assert run(["export", "out", "--to", "hf", "-o", "same"]) == 0
    assert Path("same/config.json").read_bytes() == Path("source/config.json").read_bytes()
    renamed = recipe.replace('"bert"', '"bert"\nlabels = ["over", "under", "beside"]')
    train("renamed", renamed, CLASSES)
    assert names("renamed") == ("over", "under", "beside")
    assert run(["export", "renamed", "--to", "hf", "-o", "back"]) == 0
    theirs = AutoModelForSequenceClassification.from_pretrained("back").eval()
    assert theirs.config.id2label == {0: "over", 1: "under", 2: "beside"}
    tokenizer = Tokenizer.from_file("words.json")
    model = zoo.TextModel.load("renamed")
    for text, _ in LABELLED[:5]:
        with torch.no_grad():
            scores = theirs(torch.tensor([tokenizer.encode(text).ids])).logits[0].softmax(-1)
        best = model.run([text])[0]["classes"][0]
        assert best["label"] == theirs.config.id2label[int(scores.argmax())]
        assert best["probability"] == pytest.approx(float(scores.max()), rel=1e-4)
