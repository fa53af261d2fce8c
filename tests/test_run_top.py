"""How many classes, labels and masked tokens `zoo run` tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trials import Refused, reported

import zoo

ENCODER = {"format": 1, "builder": "encoder", "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
BIASES = [2.0, -9.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0]
"""The scores of the classes, of all texts."""


def save(folder: str, **head: Any) -> None:
    head = {"kind": "classifier", "n_classes": len(BIASES), **head}
    model = zoo.build({**ENCODER, "name": folder, "vocab": 9, "head": head})
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        name = next(n for n in reversed(parameters) if parameters[n].shape == (len(BIASES),))
        parameters[name].copy_(torch.tensor(BIASES))
        parameters[name.replace("bias", "weight")].zero_()
    zoo.save(model, folder)


LIKELIEST = [6, 5, 4, 3, 2, 0, 7, 1]


@pytest.mark.parametrize(
    ("head", "by_default"),
    [
        ({}, 5),
        ({"problem_type": "multi_label_classification"}, 6),
        ({"problem_type": "regression"}, 8),
    ],
    ids=["one class", "several classes", "values"],
)
def test_classes(
    head: dict[str, Any], by_default: int, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default five; all that are likelier than not if there can be several; all values."""
    save("m", **head)
    for options, number in (
        ([], by_default),
        (["--top", "1"], 1),
        (["--top", "7"], 7),
        (["--top", "99"], 8),
    ):
        found = reported(capsys, "m", "3 4", *options)
        assert [one["class"] for one in found["classes"]] == LIKELIEST[:number]
    model = zoo.TextModel.load("m")
    for found in model.run(["3 4", "5"], top=2):
        assert [one["class"] for one in found["classes"]] == LIKELIEST[:2]


def test_five_of_a_model_of_several_classes_that_are_unlikely(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "BIASES", [bias - 6.5 for bias in BIASES])
    save("m", problem_type="multi_label_classification")
    (found,) = zoo.TextModel.load("m").run(["3 4"])
    assert [one["class"] for one in found["classes"]] == LIKELIEST[:5]


def test_classes_of_each_token(project: Path) -> None:
    save("m", kind="token_classifier")
    (found,) = zoo.TextModel.load("m").run(["3 4"], top=3)
    assert [[one["class"] for one in row] for row in found["classes"]] == [LIKELIEST[:3]] * 2


def test_masked_tokens(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo.save(zoo.build({**ENCODER, "name": "m", "vocab": 9, "head": "mlm"}), "m")
    with torch.no_grad():
        scores = zoo.load("m").eval()(torch.tensor([[3, 2]]))[0, 1]
    for options, number in (([], 5), (["--top", "8"], 8)):
        (row,) = reported(capsys, "m", "3 2", "--mask-id", "2", *options)["tokens"]
        assert [one["id"] for one in row] == scores.argsort(descending=True)[:number].tolist()


def test_what_is_refused(project: Path, refused: Refused) -> None:
    spec = {**ENCODER, "name": "vectors", "vocab": 9, "head": "sentence"}
    zoo.save(zoo.build(spec), "vectors")
    message = refused("run", "vectors", "3 4", "--top", "3")
    assert "`--top`: vectors ranks no classes, no masked tokens and no answers" in message
    assert "--top" in refused("run", "vectors", "3 4", "--top", "0")
    save("m")
    for wrong in (0, -1, True, 2.0, "3"):
        with pytest.raises(zoo.InputError, match="`top` is an integer of at least 1, not"):
            zoo.TextModel.load("m").run(["3 4"], top=wrong)  # type: ignore[arg-type]
