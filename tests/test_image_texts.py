"""Texts of models that compare them with images: their vectors, and those given as labels."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from test_image_models import LABELS, draw, imported, published, scores, word_tokenizer
from trials import Refused, reported

import zoo
from zoo.cli import run


def made(name: str, folder: Path) -> tuple[transformers.PreTrainedModel, Any, str]:
    """A model of `transformers`, its tokenizer, and the folder into which it was imported."""
    theirs, tokenizer = published(name, folder / "hf").eval(), word_tokenizer(73, "w1")
    tokenizer.save_pretrained(folder / "hf")
    return theirs, tokenizer, imported(folder / "hf")


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_vectors_of_texts(
    name: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those of `transformers`, each text by itself, and are compared with images'."""
    theirs, tokenizer, model = made(name, tmp_path)
    found = zoo.TextModel.load(model).run(LABELS)
    longest = zoo.load(model).spec.model.called_with[0].longest
    padding = {"padding": "max_length", "max_length": longest} if name == "siglip" else {}
    for text, one in zip(LABELS, found, strict=True):
        ids = tokenizer(text, return_tensors="pt", **padding)["input_ids"]
        with torch.no_grad():
            expected = theirs.get_text_features(ids)
        expected = getattr(expected, "pooler_output", expected)[0]
        assert one["task"] == "embed"
        ours = torch.tensor(one["embedding"])
        torch.testing.assert_close(ours, expected / expected.norm(), rtol=0, atol=2e-5)
    alone = reported(capsys, model, "--texts", LABELS[0])
    assert alone["embedding"] == pytest.approx(found[0]["embedding"], abs=1e-5)
    images = zoo.ImageModel.load(model)
    (image,) = images.run([draw("a.png")])
    similar = [float(np.dot(image["embedding"], one["embedding"])) for one in found]
    (labelled,) = images.run(["a.png"], labels=LABELS)
    ranked = [LABELS[n] for n in sorted(range(len(LABELS)), key=lambda n: -similar[n])]
    assert [one["label"] for one in labelled["classes"]] == ranked
    (best,) = images.run(["a.png"], labels=LABELS, top=1)
    assert best["classes"] == labelled["classes"][:1]


def test_texts_on_the_command_line(
    tmp_path: Path,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    """It needs no Pillow."""
    *_, model = made("clip", tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    capsys.readouterr()
    assert run(["run", model, "--texts", "w3 w4", "w8"]) == 0
    lines = capsys.readouterr().out
    assert lines.count("\n") == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w3 w4\nw8\n")))
    assert run(["run", model, "--texts"]) == 0
    assert capsys.readouterr().out == lines
    assert "the text is empty" in refused("run", model, "--texts", " ")
    assert "longer than the model's" in refused("run", model, "--texts", "w3 " * 99)
    assert "takes texts, neither pairs" in refused("run", model, "--texts", "--pairs", "w1", "w2")
    assert "generates no text" in refused("run", model, "--texts", "--chat", "w1")
    assert "--texts reads none; take one" in refused("run", model, "--texts", "--label", "w1")
    sizes = {"format": 1, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    zoo.save(zoo.build({**sizes, "name": "t", "builder": "encoder", "vocab": 9}), "t")
    assert "--texts: t takes no images" in refused("run", "t", "--texts", "3 4")


def test_texts_of_a_model_of_images_alone(tmp_path: Path, project: Path, refused: Refused) -> None:
    published("vit", tmp_path / "hf")
    message = refused("run", imported(tmp_path / "hf"), "--texts", "w3")
    assert "is not called with ids alone" in message


WRONG_LABELS: dict[str, Any] = {
    "none": [],
    "a text": "w3",
    "an iterator": iter(["w3"]),
    "a table": {"w3": 1},
    "a number": 3,
    "an array": np.array(["w3"]),
    "another kind": ["w3", 3],
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    published("clip", folder / "hf")
    word_tokenizer(73, "w1").save_pretrained(folder / "hf")
    zoo.import_folder(folder / "hf", folder / "clip")
    return folder / "clip"


@pytest.mark.parametrize("labels", WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_what_is_no_list_of_labels(labels: Sequence[str], clip: Path, project: Path) -> None:
    with pytest.raises(zoo.InputError, match="labels are a list of texts"):
        zoo.ImageModel.load(clip).run([draw("a.png")], labels=labels)


def test_labels_that_mean_nothing(clip: Path, project: Path, refused: Refused) -> None:
    """A blank one, which a tokenizer with an end makes ids of, and one that would take half of
    another's probability."""
    model = str(clip)
    draw("a.png")
    for blank in ("", "  ", "\n"):
        options = ("--label", "w3", "--label", blank)
        assert "the label is empty" in refused("run", model, "a.png", *options)
    twice = ("--label", "w3", "--label", "w4", "--label", "w3")
    message = refused("run", model, "a.png", *twice)
    assert "label 'w3': error: the label is stated twice" in message


def test_the_likeliest_labels(
    clip: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part for label in LABELS for part in ("--label", label)]
    every = scores(reported(capsys, str(clip), draw("a.png"), *options)["classes"])
    best = scores(reported(capsys, str(clip), "a.png", *options, "--top", "2")["classes"])
    assert list(best.items()) == list(every.items())[:2]


def test_a_model_without_values(clip: Path, project: Path) -> None:
    options = {"labels": ["w3", "w4"]}
    images, texts = (kind.load(clip, device="meta") for kind in (zoo.ImageModel, zoo.TextModel))
    for call in (
        lambda: images.run([draw("a.png")]),
        lambda: images.run([draw("a.png")], **options),
        lambda: texts.run(["w3"]),
    ):
        with pytest.raises(zoo.InputError, match="is on the device `meta`, where it has no values"):
            call()
