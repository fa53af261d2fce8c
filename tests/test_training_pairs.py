"""Classifiers of pairs of texts: what they learn, how long pairs are cut, and `zoo run` with two
texts."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from one_step import check_one_step
from toy_encoders import (
    CLASSES,
    MODEL,
    RECIPE_OF_CLASSES,
    VOCAB,
    reader_tokens,
    words,
    write_encoder,
)
from toy_training import MODEL as TRANSLATOR
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.errors import InputError
from zoo.registry import load_registry
from zoo.running.tokenizer_file import read_tokenizer
from zoo.training.batches import Labelled
from zoo.training.changes import identity
from zoo.training.data import DataReader
from zoo.training.data_tables import Datasets, Tsv
from zoo.training.example import Example
from zoo.training.loss import ReadBatch, summed_loss
from zoo.training.reader_objective import ReaderObjective
from zoo.training.recipe import read_recipe
from zoo.training.start import find_start

pytestmark = pytest.mark.usefixtures("without_pictures")

Train = Callable[..., dict[str, Any]]
SENTENCES = [f"{a} {b} is {c}" for a, b, c in product("ab", "xy", "uv")]
PAIRS = [
    (one, other, "both" if one[0] == other[0] == "a" else "not")
    for one, other in product(SENTENCES, SENTENCES)
]
"""The label follows from both texts together, and from neither alone."""
NLI = CLASSES.replace("n_classes = 3", "n_classes = 2").replace(
    'head = { kind = "classifier"', 'embedding = { n_types = 2 }\nhead = { kind = "classifier"'
)
RECIPE = (
    RECIPE_OF_CLASSES.replace("labels.tsv", "pairs.tsv")
    .replace("valid = 6", "source = [1, 2]\ntarget = 3\nvalid = 1")
    .replace("max_length = 12", "max_length = 12\nclip_norm = 1.0")
)
SIZES = {"vocab_size": len(VOCAB), "max_position_embeddings": 12, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **SIZES}


@pytest.fixture
def train(project: Path) -> Train:
    """Return a function that trains in the working directory and returns the metrics."""

    def made(out: str, recipe: str = RECIPE, model: str = NLI, **options: Any) -> Any:
        write_pairs(project, recipe, model)
        return zoo.train("recipe.toml", output=out, **options)

    return made


def write_pairs(folder: Path, recipe: str = RECIPE, model: str = NLI) -> None:
    write_encoder(folder, recipe, model)
    (folder / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))


# --- the objective ------------------------------------------------------------------------------


def theirs_of(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "bert":  # segments
        return BertForSequenceClassification(BertConfig(**BERT, intermediate_size=24, num_labels=3))
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    return DistilBertForSequenceClassification(DistilBertConfig(**SIZES, **sizes, num_labels=3))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_loss_and_one_step_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Of pairs that are padded and of ones that are truncated, encoded by their tokenizer."""
    theirs = theirs_of(kind)
    theirs.save_pretrained(tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "mine")
    theirs = theirs.double().eval()
    ours = zoo.load(tmp_path / "mine", dtype=torch.float64).eval()
    words(tmp_path / "words.json")
    tokens = reader_tokens(ours, tmp_path / "words.json")
    pairs = [
        ("a x is u", "b y"),
        ("a x is u b y is v", "c"),
        ("d", "a x is u b y is v"),
        ("a", "b"),
    ]
    labels = [0, 2, 1, 2]
    examples = [
        Example(one, str(label), other) for (one, other), label in zip(pairs, labels, strict=True)
    ]
    objective = ReaderObjective(tokens, 9, ("0", "1", "2"))
    rows = objective.encode(examples)
    batch = objective.collate(rows, torch.device("cpu"))
    assert isinstance(batch, ReadBatch)
    assert ("token_types" in batch.arguments) == (kind == "bert")
    theirs_tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "words.json"), pad_token="[PAD]"
    )
    encoded = theirs_tokenizer(
        [one for one, _ in pairs],
        [other for _, other in pairs],
        padding=True,
        truncation=True,
        max_length=9,
        return_tensors="pt",
        return_token_type_ids=kind == "bert",
    )
    assert torch.equal(batch.ids, encoded["input_ids"])
    check_one_step(
        ours,
        theirs,
        lambda: summed_loss(ours, batch, label_smoothing=0.0) / len(rows),
        lambda: theirs(**encoded, labels=torch.tensor(labels)).loss,
    )


# --- whole runs ---------------------------------------------------------------------------------


def test_pairs_are_learned(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPE.replace("steps = 8", "steps = 120").replace("every = 4", "every = 120")
    recipe = recipe.replace("valid = 1", "valid = 1\ntest = 1").replace("= 60", "= 400")
    report = train("out", recipe, NLI.replace("0.1", "0.0"))
    assert report["examples"] == {"train": 48, "valid": 8, "test": 8}  # by the first text
    assert report["valid_accuracy"] == report["accuracy"] == report["macro_f1"] == 1.0
    assert zoo.score("out", data=".") == {"accuracy": 1.0, "macro_f1": 1.0, "texts": 8}
    model = zoo.TextModel.load("out")
    found = model.run([(one, other) for one, other, _ in PAIRS])
    assert [one["classes"][0]["label"] for one in found] == [label for *_, label in PAIRS]
    # A single text after the other, as lists too, such as from JSON, and with texts beside pairs.
    assert model.run(["a x is u", ["a x is u", "b y is v"]])[1] == found[7]
    capsys.readouterr()
    told = "not", "both"
    texts = ["a x is u", "b y is v", "a x is u", "a y is v"]
    assert run(["run", "out", "--pairs", *texts]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*told]
    assert run(["run", "out", "--pairs", *texts[:2]]) == 0
    assert capsys.readouterr().out.startswith("not ")
    lines = io.TextIOWrapper(io.BytesIO(b"a x is u\tb y is v\r\na x is u\ta y is v\n"))
    monkeypatch.setattr(sys, "stdin", lines)
    assert run(["run", "out", "--pairs"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*told]


def test_the_second_text_has_a_type_of_its_own(train: Train) -> None:
    """As the tokenizer says, in `zoo run` too."""
    train("out", RECIPE.replace("steps = 8", "steps = 1"))
    model = zoo.load("out").eval()
    ids = read_tokenizer(Path("words.json")).encode("a x is u", "b y").ids
    types = torch.tensor([[0] * 6 + [1] * 3])
    with torch.no_grad():
        expected = model(torch.tensor([ids]), token_types=types)[0].softmax(-1)
        other = model(torch.tensor([ids]))[0].softmax(-1)
    (found,) = zoo.TextModel.load("out").run([("a x is u", "b y")])
    probabilities = {one["class"]: one["probability"] for one in found["classes"]}
    assert probabilities[0] == pytest.approx(float(expected[0]), rel=1e-6)
    assert probabilities[0] != pytest.approx(float(other[0]), rel=1e-6)


def test_a_resumed_run_is_the_same(train: Train) -> None:
    whole = train("whole")
    train("out", RECIPE.replace("steps = 8", "steps = 4"))
    assert train("out", resume=True)["content_digest"] == whole["content_digest"]
    assert train("other", model=NLI.replace("n_types = 2", "n_types = 0"))["content_digest"]


def test_long_pairs_are_truncated_which_is_told(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train("out", RECIPE.replace("max_length = 12", "max_length = 10"))
    told = capsys.readouterr().err
    assert "train: 56 of 56 pairs are longer than max_length = 10, and the longer text of each" in (
        told
    )


def test_a_special_token_that_a_second_text_spells_out_is_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(project, RECIPE.replace("steps = 8", "steps = 1").replace("valid = 1", "valid = 0"))
    with (project / "pairs.tsv").open("a") as file:
        file.write("a x\tb [SEP] y\tnot\n")
    zoo.train("recipe.toml")
    told = "train: 1 of 65 examples spell out a special token, such as `[SEP]`"
    assert told in capsys.readouterr().err


def test_a_learned_tokenizer_has_a_template_for_pairs(train: Train) -> None:
    recipe = RECIPE.replace('kind = "files"\nsource = "words.json"\npad = "[PAD]"', 'kind = "bpe"')
    recipe = recipe.replace("max_length = 12", "max_length = 40").replace("= 60", "= 200")
    model = NLI.replace(f"vocab = {len(VOCAB)}", "vocab = 262")
    train("out", recipe, model.replace("max_length = 12", "max_length = 40"))
    tokenizer = read_tokenizer(Path("out/tokenizer.json"))
    found = tokenizer.encode("a x", "b y")
    assert [token for token in found.tokens if token.startswith("<")] == ["<s>", "</s>", "</s>"]
    assert found.tokens[-1] == "</s>"
    assert found.type_ids == sorted(found.type_ids)
    assert sum(found.type_ids) == len(tokenizer.encode("b y").ids) - 1  # without a begin


def test_rows_without_types_are_the_data_that_they_were(project: Path) -> None:
    """A checkpoint of a run on single texts can be continued."""
    write_encoder(project, RECIPE_OF_CLASSES, CLASSES)
    start = find_start(read_recipe("recipe.toml"), load_registry())
    rows = [Labelled([2, 5, 3], (1,)), Labelled([2, 3], (0,))]
    data = hashlib.sha256(b"[[2, 5, 3], [1]][[2, 3], [0]]").hexdigest()
    assert identity(start, rows)["data"] == data
    typed = [Labelled([2, 5, 3], (1,), [0, 1, 1]), rows[1]]
    assert identity(start, typed)["data"] != data


# --- the data -----------------------------------------------------------------------------------


def test_two_columns(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("id\tp\th\tl\n1\t a b \tc\tyes\n2\td\te\tno\n")
    found = DataReader(
        Tsv(train="pairs.tsv", source=(3, 2), target=4, header=True), tmp_path
    ).splits(0)
    assert found.train == [Example("c", "yes", "a b"), Example("e", "no", "d")]


def test_two_fields_of_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = [{"p": "a b", "h": "c", "l": "yes"}, {"p": "d", "h": "e", "l": "no"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "set" / "train.jsonl").write_text(lines)
    found = DataReader(Datasets(path="set", source=("p", "h"), target="l"), tmp_path).splits(0)
    assert found.train == [Example("a b", "yes", "c"), Example("d", "no", "e")]


# --- what is refused ----------------------------------------------------------------------------

REFUSALS: dict[str, tuple[str, str, str]] = {
    "a pair of one column": (
        RECIPE.replace("[1, 2]", "[1, 1]"),
        NLI,
        "recipe.toml:8:10: error: the two texts of a pair are the same column",
    ),
    "the label as a text": (
        RECIPE.replace("[1, 2]", "[1, 3]"),
        NLI,
        "recipe.toml:8:10: error: source and target are the same column",
    ),
    "three columns": (RECIPE.replace("[1, 2]", "[1, 2, 4]"), NLI, "recipe.toml:8:10: error:"),
    "a missing second text": (
        RECIPE.replace("pairs.tsv", "half.tsv"),
        NLI,
        "half.tsv:2:1: error: the second text is missing",
    ),
    "pairs for a model that fills in": (
        RECIPE,
        MODEL,
        "the data is pairs of texts with labels, and the model learns from text",
    ),
    "pairs of texts for a translator": (
        RECIPE,
        TRANSLATOR,
        "recipe.toml:8:10: error: the data is pairs of texts with labels, and the model learns",
    ),
    "a tokenizer of single texts": (
        RECIPE.replace("words.json", "single.json"),
        NLI,
        "the tokenizer has no template for pairs of texts",
    ),
    "a type too many": (
        RECIPE.replace("words.json", "typed.json"),
        NLI,
        "the tokenizer gives a token of a pair the type 2, and the model has 2 types",
    ),
}


@pytest.mark.parametrize(("recipe", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_its_place(
    project: Path, refused: Refused, recipe: str, model: str, told: str
) -> None:
    write_pairs(project, recipe, model)
    Path("half.tsv").write_text("a x is u\tb y\tsame\na y is v\t\tsame\n")
    text = Path("words.json").read_text()
    tokenizer = json.loads(text)
    tokenizer["post_processor"]["pair"] = [{"Sequence": {"id": s, "type_id": 0}} for s in "AB"]
    Path("single.json").write_text(json.dumps(tokenizer))
    Path("typed.json").write_text(text.replace('"type_id": 1', '"type_id": 2'))
    assert told in refused("validate", "recipe.toml")
    assert told in refused("train", "recipe.toml", "-o", "out")


def test_mistakes_of_pairs_in_a_run(
    project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.save(zoo.build(NLI), "nli")
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        zoo.TextModel.load("nli").run([("5 6", "7")])
    words(Path("nli/tokenizer.json"))
    model = zoo.TextModel.load("nli")
    assert model.run([("a", "b")])
    with pytest.raises(InputError, match="takes texts, not chats"):
        model.run([[{"role": "user", "content": "a"}]])
    with pytest.raises(InputError, match=r"text 2.*13"):
        model.run([("a", "b"), ("a " * 6, "b " * 4)])
    told = refused("run", "nli", "--pairs", "a", "b", "c")
    assert "--pairs reads texts two by two, and here are 3 texts" in told
    assert "take one" in refused("run", "nli", "--pairs", "--chat", "a", "b")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\na b\n")))
    told = refused("run", "nli", "--pairs")
    assert "standard input:2: error: a pair is two texts with a tab between" in told
    zoo.save(zoo.build(TRANSLATOR.replace("name = ", 'name = "x" #')), "translator")
    words(Path("translator/tokenizer.json"))
    with pytest.raises(InputError, match="takes texts, not pairs of texts"):
        zoo.TextModel.load("translator").run([("a", "b")])
