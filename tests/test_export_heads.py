"""Export of a model that a recipe has trained with a new head on the weights of a checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from breadth import slow
from toy_encoders import LABELLED, RECIPE_OF_CLASSES, VOCAB, words, write_encoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)
from trials import Refused

import zoo
from zoo.cli import run

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 16, "vocab_size": len(VOCAB)}
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": len(VOCAB)}
BASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertForMaskedLM, BertConfig(**SIZES), {}),
    "bert without a head": (BertModel, BertConfig(**SIZES), {}),
    "roberta": (RobertaForMaskedLM, RobertaConfig(**SIZES), {}),
    "distilbert": (
        DistilBertForMaskedLM,
        DistilBertConfig(**DISTIL, max_position_embeddings=16),
        {"dense": "relu", "dropout": 0.2},
    ),
}
HEADS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "one label": (
        "{}ForSequenceClassification",
        {"kind": "classifier", "n_classes": 3},
        AutoModelForSequenceClassification,
    ),
    "a number": (
        "{}ForSequenceClassification",
        {"kind": "classifier", "n_classes": 1, "problem_type": "regression"},
        AutoModelForSequenceClassification,
    ),
    "words": (
        "{}ForTokenClassification",
        {"kind": "token_classifier", "n_classes": 3},
        AutoModelForTokenClassification,
    ),
}


def trained(folder: Path, base: str, head: str, **changes: Any) -> None:
    """Import a checkpoint, and train it with a new head into the folder `out`."""
    cls, config, of_family = BASES[base]
    torch.manual_seed(0)
    cls(config).save_pretrained("source")
    words(folder / "source" / "tokenizer.json")
    zoo.import_folder("source", "base")
    spec = zoo.load("base").spec.to_dict()
    own = of_family if head != "words" else {}
    spec |= {"head": {"dropout": 0.1, **HEADS[head][1], **own, **changes}, "name": "new"}
    spec.pop("pooler", None)
    recipe = RECIPE_OF_CLASSES.replace(
        '"model.toml"', '"model.toml"\nweights = "base"\nnew = ["head.*"]'
    )
    recipe = recipe.replace(
        'kind = "files"\nsource = "words.json"\npad = "[PAD]"', 'kind = "of_model"'
    )
    recipe = recipe.replace("steps = 8", "steps = 2")
    target: dict[str, Any] = {"one label": None, "a number": 1.5, "words": []}
    rows = [
        {
            "text": text if head != "words" else text.split(),
            "y": label if head == "one label" else target[head],
        }
        for text, label in LABELLED
    ]
    for number, row in enumerate(rows):
        if head == "words":
            row["y"] = ["O", "B-X", "I-X", "O"]
        elif head == "a number":
            row["y"] = number / 10
    recipe = recipe.replace('"tsv"', '"jsonl"')
    recipe = recipe.replace('"labels.tsv"', '"y.jsonl"\nsource = "text"\ntarget = "y"')
    write_encoder(folder, recipe, zoo.read_spec(spec).to_toml())
    (folder / "y.jsonl").write_text("\n".join(map(json.dumps, rows)))
    zoo.train("recipe.toml", output="out")


@pytest.mark.parametrize(
    ("base", "head"),
    [
        ("bert", "one label"),
        slow(pytest.param("bert", "a number")),
        ("bert", "words"),
        slow(pytest.param("bert without a head", "one label")),
        slow(pytest.param("roberta", "one label")),
        ("distilbert", "one label"),
    ],
)
def test_a_new_head_is_that_of_transformers(project: Path, base: str, head: str) -> None:
    trained(project, base, head)
    model = zoo.load("out").eval()
    assert run(["export", "out", "--to", "hf", "-o", "back"]) == 0
    theirs, told = HEADS[head][2].from_pretrained("back", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    name = theirs.config.architectures[0]
    assert type(theirs).__name__ == name
    assert name.endswith(HEADS[head][0].removeprefix("{}"))
    labels = {"one label": ("beside", "over", "under"), "words": ("B-X", "I-X", "O")}
    expected = dict(enumerate(labels.get(head, ("LABEL_0",))))
    assert theirs.config.id2label == expected
    assert theirs.config.problem_type == (None if head != "a number" else "regression")
    ids = torch.tensor([[2, 7, 9, 8, 3], [2, 11, 6, 12, 3]])
    with torch.no_grad():
        logits = theirs.eval()(ids).logits
        assert logits.abs().max() > 0
        torch.testing.assert_close(model(ids), logits, rtol=1e-5, atol=1e-6)
    assert Path("back/tokenizer.json").read_bytes() == Path("source/tokenizer.json").read_bytes()
    # What is exported can be imported again, as the same model.
    zoo.import_folder("back", "again")
    again = zoo.load("again").eval()
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids))


def test_a_head_that_is_not_published_is_refused(project: Path, refused: Refused) -> None:
    trained(project, "bert", "one label", pooling="mean")
    told = refused("export", "out", "--to", "hf", "-o", "back")
    assert "`BertForSequenceClassification` of `transformers` is another model" in told
    assert '`head.pooling` is "first" there, and "mean" in new' in told
    assert not Path("back").exists()


def test_a_tensor_of_a_new_head_whose_rule_has_no_placeholder(project: Path) -> None:
    trained(project, "bert", "one label")
    registry = zoo.load_registry()
    shutil.copytree(registry.families[0], "families")
    family = Path("families/text_encoder.toml")
    (rule,) = re.findall(r"^classifier = (\{ hf .+)$", family.read_text(), re.MULTILINE)
    rules = [f"{word} = {rule.replace('{w}', word)}" for word in ("weight", "bias")]
    family.write_text(family.read_text().replace(f"classifier = {rule}", "\n".join(rules)))
    zoo.export_folder("out", "whole")
    zoo.export_folder("out", "back", registry=replace(registry, families=[Path("families")]))
    assert (
        Path("back/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    )
