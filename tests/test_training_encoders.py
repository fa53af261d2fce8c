"""Recipes that train models which read whole texts: to fill in masked tokens, and to classify."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from breadth import one_then_slow
from ranks import Ranks
from torch.nn import functional as F
from toy_encoders import (
    CLASSES,
    LABELLED,
    LINES,
    MODEL,
    RECIPE,
    RECIPE_OF_CLASSES,
    TEXTS,
    VOCAB,
    reader_tokens,
    words,
    write_encoder,
)
from toy_training import in_processes
from training_tasks import trained
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

import zoo
from zoo.cli import run
from zoo.training.batches import IGNORED, Labelled, n_labels
from zoo.training.example import Example
from zoo.training.f1 import macro_f1
from zoo.training.loss import loss_and_hits, summed_loss
from zoo.training.reader_objective import ReaderObjective

pytestmark = pytest.mark.usefixtures("without_pictures")

OF_LINES = 'test = "four.txt"\n[masking]\nmasked = 1.0\nrandom = 0.0'
Train = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")
BOTH = {"filler": (RECIPE, MODEL), "classes": (RECIPE_OF_CLASSES, CLASSES)}
both = pytest.mark.parametrize(("recipe", "model"), BOTH.values(), ids=BOTH)
HF = {"vocab_size": len(VOCAB), "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 0}
BERT = {**HF, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 12}


@pytest.fixture
def train(tmp_path: Path, config: Path) -> Train:
    """Return a function that trains into a folder and returns the metrics."""

    def made(out: str, recipe: str, model: str = MODEL, **options: Any) -> Any:
        return zoo.train(write_encoder(tmp_path, recipe, model), output=tmp_path / out, **options)

    return made


def objective_for(model: zoo.Transformer, folder: Path) -> ReaderObjective:
    words(folder / "words.json")
    return ReaderObjective(reader_tokens(model, folder / "words.json"), 10, ("a", "b", "c"))


def rows_for(objective: ReaderObjective) -> list[Labelled]:
    """Rows of several lengths, with what is predicted of them."""
    texts = [" ".join(TEXTS[:n]) for n in (1, 2, 1)] + TEXTS[:2]
    examples = [Example(text, label) for text, label in zip(texts, "abaca", strict=True)]
    if objective.tokens.reader.classes is None:
        examples = [Example(None, text) for text in texts]
    rows = objective.drawn(objective.encode(examples), seed=1, step=1)
    return [row for row in rows if isinstance(row, Labelled)]


def history(folder: Path) -> list[dict[str, float]]:
    """The log without its times."""
    records = json.loads((folder / "metrics.json").read_text())["history"]
    return [{k: v for k, v in one.items() if k != "tokens_per_second"} for one in records]


# --- the objective ------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("model", [MODEL, CLASSES], ids=BOTH)
def test_the_loss_is_that_of_each_text_alone(model: str, smoothing: float, tmp_path: Path) -> None:
    """Without padding, against PyTorch's cross-entropy where something is predicted."""
    made: Any = zoo.build(model, dtype=torch.float64).eval()
    objective = objective_for(made, tmp_path)
    rows = rows_for(objective)
    assert len({row.length for row in rows}) > 1
    expected, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for row in rows:
            scores = made(torch.tensor([row.ids]))[0].view(-1, made(torch.tensor([[2]])).shape[-1])
            for score, label in zip(scores, row.labels, strict=True):
                if label == IGNORED:
                    continue
                target = torch.tensor(label)
                expected += float(F.cross_entropy(score, target, label_smoothing=smoothing))
                hits, n = hits + int(score.argmax() == label), n + 1
        batch = objective.collate(rows, CPU)
        found = summed_loss(made, batch, label_smoothing=smoothing)
        measured = loss_and_hits(made, batch)
    assert n == n_labels(rows)
    assert float(found) == pytest.approx(expected, rel=1e-12)
    assert measured[1] == hits
    if not smoothing:
        assert float(measured[0]) == pytest.approx(expected, rel=1e-12)


def test_packed_texts_are_joined_with_their_special_tokens_and_cut(tmp_path: Path) -> None:
    objective = objective_for(zoo.build(MODEL), tmp_path)
    joined = [id_ for text in TEXTS for id_ in objective.tokens.tokenizer.encode(text).ids]
    texts = [Example(None, text) for text in TEXTS]
    rows = objective.encode(texts, packed=True)
    assert [[*row.ids] for row in rows] == [
        joined[at : at + 10] for at in range(0, len(joined), 10)
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_no_word_of_a_text_longer_than_a_row_is_lost(packed: bool, tmp_path: Path) -> None:
    objective = objective_for(zoo.build(MODEL), tmp_path)
    text = " ".join(TEXTS[:5])
    first, last = VOCAB.index("[CLS]"), VOCAB.index("[SEP]")
    ids = [VOCAB.index(word) for word in text.split()]
    if packed:
        whole = [first, *ids, last]
        expected = [whole[at : at + 10] for at in range(0, len(whole), 10)]
    else:
        expected = [[first, *ids[at : at + 8], last] for at in range(0, len(ids), 8)]
    rows = objective.encode([Example(None, text)], packed=packed)
    assert [[*row.ids] for row in rows] == expected


def hugging_face(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
        shape = {"vocab_size": len(VOCAB), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        return GPT2ForSequenceClassification(GPT2Config(**sizes, **shape, num_labels=3))
    if kind == "masked":
        return BertForMaskedLM(BertConfig(**BERT))
    return BertForSequenceClassification(BertConfig(**BERT, num_labels=3))


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        (
            "masked",
            {
                "bert.embeddings.word_embeddings.weight": "encoder.embed.tokens.weight",
                "bert.encoder.layer.0.attention.self.query.weight": (
                    "encoder.layers.0.self_attn.q_proj.weight"
                ),
                "cls.predictions.transform.dense.weight": "head.dense.weight",
                "cls.predictions.bias": "head.out.bias",
            },
        ),
        (
            "classes",
            {
                "bert.embeddings.position_embeddings.weight": "encoder.embed.positions.weight",
                "bert.encoder.layer.1.output.dense.weight": "encoder.layers.1.ffn.down_proj.weight",
                "bert.pooler.dense.weight": "head.dense.weight",
                "classifier.weight": "head.out.weight",
            },
        ),
        ("gpt2", {"score.weight": "head.out.weight", "transformer.ln_f.bias": "decoder.norm.bias"}),
    ],
    ids=["masked", "classes", "gpt2"],
)
def test_loss_and_gradients_are_those_of_transformers(
    kind: str, pairs: dict[str, str], tmp_path: Path
) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    theirs = theirs.double().eval()
    ours = zoo.load(tmp_path / "mine", dtype=torch.float64).eval()
    objective = objective_for(ours, tmp_path)
    rows = rows_for(objective)
    batch = objective.collate(rows, CPU)
    (summed_loss(ours, batch, label_smoothing=0.0) / n_labels(rows)).backward()
    longest = max(row.length for row in rows)
    ids = torch.tensor([[*row.ids, *[0] * (longest - row.length)] for row in rows])
    labels = torch.tensor([row.labels[0] for row in rows])
    if kind == "masked":
        labels = torch.tensor([[*row.labels, *[-100] * (longest - row.length)] for row in rows])
    told = theirs(ids, attention_mask=(ids != 0).long(), labels=labels)
    told.loss.backward()
    with torch.no_grad():
        loss = summed_loss(ours, batch, label_smoothing=0.0) / n_labels(rows)
    torch.testing.assert_close(loss, told.loss.detach(), rtol=1e-10, atol=0)
    for their_name, our_name in pairs.items():
        expected = theirs.get_parameter(their_name).grad
        assert expected.abs().max() > 0
        torch.testing.assert_close(
            ours.get_parameter(our_name).grad, expected, rtol=1e-8, atol=1e-12
        )


# --- whole runs ---------------------------------------------------------------------------------


def test_masked_words_are_learned_by_heart(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one word of a line, each other one follows."""
    recipe = RECIPE.replace("steps = 8", "steps = 150").replace("every = 4", "every = 150")
    recipe = recipe.replace("lines.txt", "four.txt").replace('valid = "valid.txt"', OF_LINES)
    write_encoder(tmp_path)
    (tmp_path / "four.txt").write_text("".join(f"{line}\n" for line in LINES))
    report = train("out", recipe, MODEL.replace("0.1", "0.0"))
    assert report["accuracy"] == 1.0
    assert report["test_accuracy"] == 1.0
    assert report["test_loss"] < 0.1
    assert report["masked_perplexity"] == pytest.approx(math.exp(report["test_loss"]), rel=1e-4)
    assert zoo.score(tmp_path / "out", data=tmp_path) == {
        key: report[key] for key in ("accuracy", "masked_perplexity", "masked_tokens")
    }
    masked = [line.replace(line.split()[1], "[MASK]") for line in LINES]
    found = zoo.TextModel.load(tmp_path / "out").run(masked)
    assert [one["text"] for one in found] == LINES
    assert run(["score", str(tmp_path / "out"), "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("accuracy: 1.0000 on 4 tokens that are masked")


def test_labels_are_learned(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPE_OF_CLASSES.replace("steps = 8", "steps = 150").replace(
        "every = 4", "every = 150"
    )
    recipe = recipe.replace("valid = 6", "valid = 6\ntest = 6")
    report = train("out", recipe, CLASSES.replace("0.1", "0.0"))
    assert report["accuracy"] == report["macro_f1"] == report["valid_accuracy"] == 1.0
    assert report["texts"] == 6
    assert report["valid_loss"] < 0.1
    model = zoo.TextModel.load(tmp_path / "out")
    # In the order of the alphabet, and in the file alone.
    assert model.transformer.spec.model.classes[:2] == (3, ("beside", "over", "under"))
    found = model.run([text for text, _ in LABELLED])
    assert [one["classes"][0]["label"] for one in found] == [label for _, label in LABELLED]
    scores = {key: report[key] for key in ("accuracy", "macro_f1", "texts")}
    assert zoo.score(tmp_path / "out", data=tmp_path) == scores
    capsys.readouterr()
    assert run(["run", str(tmp_path / "out"), TEXTS[0]]) == 0
    assert capsys.readouterr().out.startswith("under 0.")
    assert run(["score", str(tmp_path / "out"), "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "accuracy: 1.0000 on 6 texts, macro F1 1.0000\n"


@both
def test_a_resumed_run_is_the_same(train: Train, tmp_path: Path, recipe: str, model: str) -> None:
    whole = train("whole", recipe, model)
    train("out", recipe.replace("steps = 8", "steps = 4"), model)
    resumed = train("out", recipe, model, resume=True)
    assert resumed["content_digest"] == whole["content_digest"]
    assert history(tmp_path / "out")[-1] == history(tmp_path / "whole")[-1]
    other = train("seed", recipe.replace('"model.toml"', '"model.toml"\nseed = 1'), model)
    assert other["content_digest"] != whole["content_digest"]


@pytest.mark.parametrize(
    ("recipe", "model"),
    one_then_slow(pytest.param(*case, id=name) for name, case in BOTH.items()),
)
def test_parts_and_processes_make_the_same_update(
    train: Train, tmp_path: Path, two: Ranks, recipe: str, model: str
) -> None:
    lean = model.replace("dropout = 0.1", "dropout = 0.0")
    recipe = recipe.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    recipe = recipe.replace("batch_tokens = 60", "batch_tokens = 20")  # some parts are empty
    alone = train("alone", recipe, lean)
    parts = train("parts", recipe.replace("steps = 8", "steps = 8\naccumulate = 3"), lean)
    assert parts["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)
    write_encoder(tmp_path, recipe.replace("steps = 8", "steps = 8\naccumulate = 2"), lean)
    two(trained, tmp_path, "two")
    for mine, theirs in zip(history(tmp_path / "two"), history(tmp_path / "alone"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_weights_that_the_loss_does_not_reach_in_two_processes(
    train: Train, tmp_path: Path, two: Ranks
) -> None:
    """As in an imported BERT, whose pooler is beside the head that fills in."""
    lean = MODEL.replace("dropout = 0.1", 'dropout = 0.0\npooler = "pooler"\nnsp = true')
    recipe = RECIPE.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    train("alone", recipe, lean)
    two(trained, tmp_path, "two")
    for mine, theirs in zip(history(tmp_path / "two"), history(tmp_path / "alone"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


POOLED = MODEL.replace("dropout = 0.1", 'dropout = 0.1\npooler = "pooler"\nnsp = true')


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_run_with_weights_that_the_loss_does_not_reach_is_resumed(
    train: Train, tmp_path: Path, optimizer: str
) -> None:
    """The optimiser has no state of them, and so no checkpoint has."""
    recipe = RECIPE.replace("adamw", optimizer)
    whole = train("whole", recipe, POOLED)
    for steps in (2, 4):
        train("out", recipe.replace("steps = 8", f"steps = {steps}"), POOLED, resume=True)
    resumed = train("out", recipe, POOLED, resume=True)
    assert resumed["content_digest"] == whole["content_digest"]


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["true", "false"])
def test_two_processes_resume_with_weights_that_the_loss_does_not_reach(
    tmp_path: Path, config: Path, train: Train, shard: str
) -> None:
    lean = POOLED.replace("dropout = 0.1", "dropout = 0.0")
    recipe = RECIPE.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    recipe = recipe.replace("steps = 8", f"steps = 8\nshard = {shard}")
    whole = train("whole", recipe, lean)
    train("out", recipe.replace("steps = 8", "steps = 4"), lean)
    path = write_encoder(tmp_path, recipe, lean)
    said = in_processes("train", path, "-o", tmp_path / "out", "--resume", processes=2, timeout=300)
    assert "warning" not in said
    assert history(tmp_path / "out")[-1]["valid_loss"] == pytest.approx(
        whole["valid_loss"], rel=1e-5
    )


def test_weights_that_the_loss_does_not_reach_are_not_trained_alone(train: Train) -> None:
    model = MODEL.replace("dropout = 0.1", 'pooler = "pooler"')
    frozen = 'steps = 8\nfrozen = ["encoder.*", "head.*"]'
    with pytest.raises(zoo.TrainingError, match="the loss depends on are frozen"):
        train("out", RECIPE.replace("steps = 8", frozen), model)


def test_macro_f1() -> None:
    # Class 0: precision 2/3, recall 2/2; 1: none found; 2: precision and recall 1/1; 3: no recall.
    pairs = [(0, 0), (0, 0), (1, 0), (2, 2), (2, 3)]
    f1 = [2 * (2 / 3) / (2 / 3 + 1), 0.0, 2 * 0.5 / 1.5, 0.0]
    assert macro_f1(pairs) == pytest.approx(sum(f1) / 4)
    assert macro_f1([(5, 5)]) == 1.0
