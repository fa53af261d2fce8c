"""Models of several labels of each text, and of a number: what they learn, and their scores."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from one_step import check_one_step
from scipy import stats
from torch import nn
from toy_encoders import (
    CLASSES,
    MODEL,
    RECIPE_OF_CLASSES,
    TEXTS,
    VOCAB,
    reader_tokens,
    words,
    write_encoder,
)
from transformers import BertConfig, BertForSequenceClassification
from trials import Refused

import zoo
from zoo.cli import run
from zoo.training.batches import n_labels
from zoo.training.correlation import pearson, spearman
from zoo.training.example import Example
from zoo.training.f1 import micro_and_macro_f1
from zoo.training.loss import ValuedBatch, loss_and_hits, summed_loss, without_labels
from zoo.training.plot import plot_losses
from zoo.training.reader_objective import ReaderObjective

pytestmark = pytest.mark.usefixtures("without_pictures")

Train = Callable[..., dict[str, Any]]
WITH = {"u": "under", "x": "beside", "a": "over"}
"""The words that give a text a label: a text may have all three, or none."""
SEVERAL = [
    (text, [label for word, label in WITH.items() if word in text.split()]) for text in TEXTS
]
NUMBERS = [(text, "uvw".index(text[-1]) - 0.5) for text in TEXTS]
TAGS = CLASSES.replace(
    "n_classes = 3", 'n_classes = 3, problem_type = "multi_label_classification"'
)
NUMBER = CLASSES.replace("n_classes = 3", 'n_classes = 1, problem_type = "regression"')
RECIPE_OF_TAGS = (
    RECIPE_OF_CLASSES.replace('"tsv"', '"jsonl"')
    .replace('"labels.tsv"', '"tags.jsonl"\nsource = "text"\ntarget = "labels"')
    .replace("valid = 6", "valid = 6\ntest = 6")
)
RECIPE_OF_NUMBERS = RECIPE_OF_CLASSES.replace("labels.tsv", "numbers.tsv").replace(
    "valid = 6", "valid = 6\ntest = 6"
)
BOTH = {"tags": (RECIPE_OF_TAGS, TAGS), "number": (RECIPE_OF_NUMBERS, NUMBER)}
both = pytest.mark.parametrize(("recipe", "model"), BOTH.values(), ids=BOTH)
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
BERT |= {"intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": len(VOCAB)}
LABELS = ("beside", "over", "under")


def write(folder: Path, recipe: str, model: str) -> None:
    write_encoder(folder, recipe, model)
    rows = [json.dumps({"text": text, "labels": labels}) for text, labels in SEVERAL]
    (folder / "tags.jsonl").write_text("\n".join(rows))
    (folder / "numbers.tsv").write_text("".join(f"{text}\t{n}\n" for text, n in NUMBERS))


@pytest.fixture
def train(project: Path) -> Train:
    """Return a function that trains in the working directory and returns the metrics."""

    def made(out: str, recipe: str, model: str, **options: Any) -> Any:
        write(project, recipe, model)
        return zoo.train("recipe.toml", output=out, **options)

    return made


# --- scores -------------------------------------------------------------------------------------


def test_f1_of_several_classes() -> None:
    """By hand: tp, fp, fn of the classes are 1, 1, 0; 0, 0, 1; and none of the last."""
    right = [[True, False, False], [False, True, False]]
    found = [[True, False, False], [True, False, False]]
    micro, macro = micro_and_macro_f1(right, found)
    assert micro == pytest.approx(2 * 1 / (2 * 1 + 1 + 1))
    assert macro == pytest.approx((2 / 3 + 0) / 2)
    assert micro_and_macro_f1([[False]], [[False]]) == (0.0, 0.0)
    assert micro_and_macro_f1(right, right) == (1.0, 1.0)


def test_a_class_with_a_probability_of_a_half_is_not_told() -> None:
    labels = torch.tensor([[1.0, 1.0, 0.0, torch.nan]], dtype=torch.float64)
    batch = ValuedBatch(torch.tensor([[1]]), {}, labels, binary=True)
    model = nn.Embedding.from_pretrained(torch.zeros(2, 4))  # scores of 0, for an id
    loss, n_right = loss_and_hits(model, batch).tolist()
    assert loss == pytest.approx(3 * math.log(2))  # of the classes that are stated
    assert n_right == 1


def test_correlations_are_those_of_scipy() -> None:
    random = torch.Generator().manual_seed(0)
    one = torch.randint(5, (40,), generator=random).double().tolist()  # many are equal
    other = torch.randn(40, generator=random, dtype=torch.float64).tolist()
    other[3] = other[4]
    assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other).statistic)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert spearman([1, 2, 3], [1, 10, 1e6]) == pytest.approx(1.0)
    assert pearson([0.1] * 3, [1, 2, 3]) is None


# --- the objective ------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_loss_and_one_step_are_those_of_transformers(problem: str, tmp_path: Path) -> None:
    """By the `problem_type` of their config.json alone."""
    torch.manual_seed(0)
    number = 1 if problem == "regression" else 3
    config = BertConfig(**BERT, num_labels=number, problem_type=problem)
    theirs: Any = BertForSequenceClassification(config)
    theirs.save_pretrained(tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    theirs = theirs.double().eval()
    ours = zoo.load(tmp_path / "mine", dtype=torch.float64).eval()
    words(tmp_path / "words.json")
    tokens = reader_tokens(ours, tmp_path / "words.json")
    texts = [" ".join(TEXTS[:2]), *TEXTS[:4]]
    if number == 1:
        # One of them is the number that elsewhere stands for no label.
        examples = [
            Example(text, n)
            for text, n in zip(texts, ["0.1", "-100", "3", "1e-3", "-2.5"], strict=True)
        ]
        labels = torch.tensor([float(one.target_text) for one in examples], dtype=torch.float64)
    else:
        sets = [("a", "c"), (), ("b",), ("c",), ("a", "b", "c")]
        examples = [Example(text, one) for text, one in zip(texts, sets, strict=True)]
        labels = torch.tensor(
            [[float(label in one) for label in "abc"] for one in sets], dtype=torch.float64
        )
    objective = ReaderObjective(tokens, 12, ("a", "b", "c"))
    rows = objective.encode(examples)
    batch = objective.collate(rows, torch.device("cpu"))
    assert isinstance(batch, ValuedBatch)
    mask = (batch.ids != 0).long()
    with torch.no_grad():
        told = theirs(batch.ids, attention_mask=mask, labels=labels)
        measured, hits = loss_and_hits(ours, batch).tolist()
        decided = (told.logits.sigmoid() > 0.5) == (labels > 0.5)
    assert measured == pytest.approx(float(told.loss) * n_labels(rows))
    assert hits == (0 if number == 1 else int(decided.sum()))
    assert float(summed_loss(ours, without_labels(batch), label_smoothing=0.0).detach()) == 0.0
    check_one_step(
        ours,
        theirs,
        lambda: summed_loss(ours, batch, label_smoothing=0.0) / n_labels(rows),
        lambda: theirs(batch.ids, attention_mask=mask, labels=labels).loss,
    )


@pytest.mark.parametrize(
    ("model", "targets", "loss", "known_by"),
    [
        (MODEL, ["a"], 3.401197, "if all 30 tokens were equally likely"),  # ln 30
        (CLASSES, ["a"], 1.098612, "if all 3 classes were equally likely"),  # ln 3
        (TAGS, [("a", "b")], 0.693147, "if each class were as likely as not"),  # ln 2
        (NUMBER, ["1", "2", "6"], 14 / 3, "with the mean of all targets"),  # (4 + 1 + 9) / 3
    ],
    ids=["masked", "class", "classes", "number"],
)
def test_the_loss_of_a_model_that_has_learned_nothing(
    model: str, targets: list[Any], loss: float, known_by: str, tmp_path: Path
) -> None:
    words(tmp_path / "words.json")
    objective = ReaderObjective(reader_tokens(zoo.build(model), tmp_path / "words.json"), 12)
    examples = [Example("a", target) for target in targets]
    outputs = 30 if model == MODEL else 3
    assert objective.untrained_loss(outputs, examples) == (pytest.approx(loss, abs=1e-6), known_by)


# --- whole runs ---------------------------------------------------------------------------------


def test_several_labels_are_learned(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPE_OF_TAGS.replace("steps = 8", "steps = 150").replace("every = 4", "every = 150")
    recipe = recipe.replace("batch_tokens = 60", "batch_tokens = 300")
    report = train("out", recipe, TAGS.replace("0.1", "0.0"))
    assert report["valid_accuracy"] == report["micro_f1"] == report["macro_f1"] == 1.0
    assert report["valid_loss"] < 0.2
    assert zoo.score("out", data=".") == {"micro_f1": 1.0, "macro_f1": 1.0, "texts": 6}
    model = zoo.TextModel.load("out")
    assert (model.transformer.spec.model.classes or ())[:2] == (3, LABELS)
    for (_, labels), found in zip(SEVERAL, model.run([text for text, _ in SEVERAL]), strict=True):
        likely = {one["label"] for one in found["classes"] if one["probability"] > 0.5}
        assert likely == {*labels}
    capsys.readouterr()
    assert run(["score", "out", "--data", "."]) == 0
    assert capsys.readouterr().out == "F1 on 6 texts: micro 1.0000, macro 1.0000\n"


def test_numbers_are_learned(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.training.run.plot_losses", plot_losses)
    recipe = RECIPE_OF_NUMBERS.replace("steps = 8", "steps = 150")
    report = train("out", recipe, NUMBER.replace("0.1", "0.0"))
    assert "(RMSE 0." in capsys.readouterr().err
    assert report["valid_rmse"] == pytest.approx(math.sqrt(report["valid_loss"]))
    assert report["pearson"] > 0.9
    assert report["spearman"] > 0.8
    assert report["rmse"] == pytest.approx(math.sqrt(report["test_loss"]), rel=1e-4)
    assert "mean squared error" in Path("out/loss.svg").read_text()
    model = zoo.TextModel.load("out")
    for (_, number), found in zip(NUMBERS, model.run([text for text, _ in NUMBERS]), strict=True):
        assert found["classes"][0]["value"] == pytest.approx(number, abs=0.5)
    assert run(["score", "out", "--data", "."]) == 0
    assert capsys.readouterr().out.startswith("correlation on 6 texts: Pearson 0.9")


@both
def test_a_resumed_run_is_the_same(train: Train, recipe: str, model: str) -> None:
    whole = train("whole", recipe, model)
    train("out", recipe.replace("steps = 8", "steps = 4"), model)
    assert train("out", recipe, model, resume=True)["content_digest"] == whole["content_digest"]


def test_what_held_out_data_shows_to_be_learned_is_learned(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of training is a mean over all steps, and far above what it is in the end."""
    recipe = re.sub("every = .", "every = 20", RECIPE_OF_NUMBERS).replace("steps = 8", "steps = 20")
    report = train("out", recipe, NUMBER)
    variance = statistics.pvariance(number for _, number in NUMBERS)
    assert report["valid_loss"] < variance < report["loss"]
    assert "learned nothing" not in capsys.readouterr().err


# --- what is refused ----------------------------------------------------------------------------

REFUSALS: dict[str, tuple[str, str, str]] = {
    "one label for a model of several": (
        RECIPE_OF_CLASSES,
        TAGS,
        "the data is pairs, and the model learns from texts with lists of labels",
    ),
    "several labels for a model of one": (
        RECIPE_OF_TAGS,
        CLASSES,
        "recipe.toml:9:10: error: the data is texts with lists of labels, and the model learns",
    ),
    "no list of labels": (
        RECIPE_OF_TAGS.replace("tags.jsonl", "null.jsonl"),
        TAGS,
        "null.jsonl:2:1: error: there is no list here, and the target is a list in the lines "
        'before\n    2 | {"text": "b", "labels": null}\n      | ^\n'
        "      = help: the labels of a text are a list, `[]` if it has none, in every line",
    ),
    "a label twice": (
        RECIPE_OF_TAGS.replace("tags.jsonl", "bits.jsonl"),
        TAGS,
        "bits.jsonl:3:1: error: the label `0` is there twice\n",
    ),
    "1 or 0 for each class": (
        RECIPE_OF_TAGS.replace("tags.jsonl", "one.jsonl").replace("valid = 6\ntest = 6", ""),
        TAGS.replace("n_classes = 3", "n_classes = 2"),
        "recipe.toml:9:10: error: each list is 1 or 0 for each class, and no list of labels\n",
    ),
    "no number": (
        RECIPE_OF_CLASSES,
        NUMBER,
        "labels.tsv:1:10: error: `under` is not a number",
    ),
    "not a finite number": (
        RECIPE_OF_NUMBERS.replace("numbers.tsv", "nan.tsv").replace("valid = 6\ntest = 6", ""),
        NUMBER,
        "nan.tsv:2:5: error: `nan` is not a number",
    ),
    "not a decimal number": (
        RECIPE_OF_NUMBERS.replace("numbers.tsv", "large.tsv").replace("valid = 6\ntest = 6", ""),
        NUMBER,
        "large.tsv:1:3: error: `1_0` is not a number",
    ),
    "a number beyond float32": (
        RECIPE_OF_NUMBERS.replace("numbers.tsv", "large.tsv").replace("valid = 6\ntest = 6", ""),
        NUMBER,
        "large.tsv:2:5: error: `-1e39` is too large",
    ),
    "a number whose square is beyond float32": (
        RECIPE_OF_NUMBERS.replace("numbers.tsv", "large.tsv").replace("valid = 6\ntest = 6", ""),
        NUMBER,
        "large.tsv:3:5: error: `2e19` is too large",
    ),
    "two numbers": (
        RECIPE_OF_NUMBERS,
        NUMBER.replace("n_classes = 1", "n_classes = 2"),
        "classes makes 2 numbers of a text, and a recipe trains for one",
    ),
    "labels of numbers": (
        RECIPE_OF_NUMBERS.replace('"model.toml"', '"model.toml"\nlabels = ["a"]'),
        NUMBER,
        "`labels` has no effect: classes does not classify",
    ),
    "smoothing": (
        RECIPE_OF_TAGS.replace("steps = 8", "steps = 8\nlabel_smoothing = 0.1"),
        TAGS,
        "`label_smoothing` has no effect: it is for classes of which one is right",
    ),
    "a label too many": (
        RECIPE_OF_TAGS,
        TAGS.replace("n_classes = 3", "n_classes = 2"),
        "the training data has 3 labels, and classes scores 2 classes",
    ),
    "a single class": (
        RECIPE_OF_CLASSES,
        CLASSES.replace("n_classes = 3", "n_classes = 1"),
        'whose score is a number, `problem_type = "regression"`',
    ),
}


@pytest.mark.parametrize(("recipe", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_its_place(
    project: Path, refused: Refused, recipe: str, model: str, told: str
) -> None:
    write(project, recipe, model)
    Path("null.jsonl").write_text(
        '{"text": "a", "labels": ["under"]}\n{"text": "b", "labels": null}\n'
    )
    bits = [f'{{"text": "{text}", "labels": [{text}]}}\n' for text in ("1, 0", "0, 1", "0, 0")]
    Path("bits.jsonl").write_text("".join(bits))
    Path("one.jsonl").write_text("".join(bits[:2]))
    Path("nan.tsv").write_text("a\t1\nb x\tnan\n")
    Path("large.tsv").write_text("a\t1_0\nb x\t-1e39\nc x\t2e19\nd x\t-.5e+3\n")
    assert told in refused("validate", "recipe.toml")
    assert told in refused("train", "recipe.toml", "-o", "out")
