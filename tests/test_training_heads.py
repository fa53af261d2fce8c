"""Labels of a classifier, weights from a model with another head, and what of both is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from breadth import one_then_slow
from ranks import Ranks
from tokenizers import Tokenizer
from toy_encoders import CLASSES, LABELLED, MODEL, RECIPE, RECIPE_OF_CLASSES, VOCAB, write_encoder
from training_tasks import trained
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.running.labels import labels_of

pytestmark = pytest.mark.usefixtures("without_pictures")

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
    of_model = 'kind = "of_model"'
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
    digest = zoo.load("filler").load_report.content_digest
    assert part == {"new": ["head.*"], "content_digest": digest}
    assert zoo.TextModel.load("out").run(["a x is u"])[0]["task"] == "classify"


@pytest.mark.parametrize("shard", one_then_slow(["true", "false"]))
def test_a_new_head_in_two_processes(train: Train, project: Path, two: Ranks, shard: str) -> None:
    train("filler", RECIPE)
    recipe = FROM_OTHER.replace("steps = 1", f"steps = 3\nshard = {shard}")
    recipe = recipe.replace("lr = 1e-2", "lr = 1e-2\neps = 1e-3")
    lean = CLASSES.replace("0.1", "0.0")
    alone = train("alone", recipe, lean)
    two(trained, project, "two")
    told = json.loads(Path("two/metrics.json").read_text())
    assert told["valid_loss"] == pytest.approx(alone["valid_loss"], rel=1e-5)


def test_an_encoder_that_is_frozen_under_a_new_head(train: Train) -> None:
    train("filler", RECIPE)
    train("out", FROM_OTHER.replace("steps = 1", 'steps = 3\nfrozen = ["encoder.*"]'), CLASSES)
    found, before = tensors("out"), tensors("filler")
    shared = [name for name in found if name.startswith("encoder.")]
    assert all(torch.equal(found[name], before[name]) for name in shared)
    assert not torch.equal(
        found["head.out.weight"], zoo.build(CLASSES).state_dict()["head.out.weight"]
    )


def imported(cls: Any, folder: str, labels: Sequence[str] = (), **config: Any) -> Any:
    """A published model of random weights, imported into a folder; `labels` name its classes."""
    torch.manual_seed(0)
    if labels:
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = {label: number for number, label in enumerate(labels)}
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
    imported(BertForSequenceClassification, "bert", ["under", "beside", "over"])
    recipe = RECIPE_OF_CLASSES.replace('"model.toml"', '"bert"')
    train("out", recipe, CLASSES)
    assert names("out") == ("under", "beside", "over")
    assert zoo.load("out").spec == zoo.load("bert").spec  # they are where they were
    assert run(["export", "out", "--to", "hf", "-o", "same"]) == 0
    assert Path("same/config.json").read_bytes() == Path("source/config.json").read_bytes()
    imported(BertForSequenceClassification, "other", ["above", "under", "next"])
    renamed = recipe.replace('"bert"', '"other"\nlabels = ["over", "under", "beside"]')
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


def test_a_trained_class_keeps_its_label_or_gets_a_new_one(train: Train, refused: Refused) -> None:
    """With the labels in another order, the head would begin with wrong answers."""
    recipe = RECIPE_OF_CLASSES.replace("steps = 8", "steps = 1")
    train("first", recipe, CLASSES)
    further = recipe.replace('"model.toml"', '"first"\nlabels = ["beside", "under", "over"]')
    Path("recipe.toml").write_text(further)
    told = (
        "recipe.toml:4:21: error: class 1 of classes is trained as `over`, and `under` is its "
        "class 2\n"
    )
    both = "its labels are `beside`, `over`, `under`, and here they are `beside`, `under`, `over`: "
    for command in (("validate", "recipe.toml"), ("train", "recipe.toml", "-o", "out")):
        said = refused(*command)
        assert told in said
        assert both in said
    # The weights of a new head have no labels yet.
    anew = further.replace('"first"', '"model.toml"\nweights = "first"\nnew = ["head.*"]')
    train("anew", anew, CLASSES)
    assert names("anew") == ("beside", "under", "over")


# --- what is refused ----------------------------------------------------------------------------


CHATS = """\
[data]
kind = "jsonl"
train = "a.jsonl"
test = "a.jsonl"
messages = "m"

[tokenizer]
kind = "of_model"

[optimizer]"""


NAMED = 'n_classes = 3, labels = ["under", "over", "beside"]'


@pytest.mark.parametrize(
    ("head", "data", "line", "told"),
    [
        (
            "n_classes = 3",
            "",
            "a x is u\tunder",
            "class 0 of classes has no name, so that no recipe",
        ),
        (
            "n_classes = 3",
            CHATS,
            "",
            "recipe.toml:9:12: error: chats are for decoders, and classes learns from texts with",
        ),
        (
            NAMED,
            "",
            "a x is u\tunder\na x is v\tabove",
            "labels.tsv:2:10: error: unknown label `above`",
        ),
        (
            'n_classes = 1, problem_type = "regression"',
            "",
            "a x is u\tunder",
            "labels.tsv:1:10: error: `under` is not a number",
        ),
        (
            NAMED.replace("3", '3, problem_type = "multi_label_classification"'),
            "",
            "a x is u\tunder",
            "the data is pairs, and the model learns from texts with lists of labels",
        ),
    ],
)
def test_what_a_classifier_is_measured_on_fits_it(
    head: str, data: str, line: str, told: str, project: Path, refused: Refused
) -> None:
    """The recipe in its folder may be that of another model, and the data may have changed."""
    model = CLASSES.replace("n_classes = 3", head)
    recipe = RECIPE_OF_CLASSES.replace("valid = 6", 'test = "labels.tsv"')
    if data:
        recipe = f"{recipe.partition('[data]')[0]}{data}{recipe.partition('[optimizer]')[2]}"
    path = write_encoder(project, recipe, model)
    assert run(["build", "model.toml", "-o", "new"]) == 0
    path.rename("new/recipe.toml")
    Path("words.json").rename("new/tokenizer.json")
    Path("labels.tsv").write_text(f"{line}\n")
    assert told in refused("score", "new", "--data", ".")


LABELS = '"model.toml"\nlabels = '
OTHER = '"model.toml"\nweights = "filler"'
REFUSALS: dict[str, tuple[str, str, str]] = {
    "more labels than classes": (
        RECIPE_OF_CLASSES,
        CLASSES.replace("n_classes = 3", "n_classes = 2"),
        "the training data has 3 labels, and classes scores 2 classes: `beside`, `over`, `under`",
    ),
    "another number of stated labels": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{LABELS}["over", "under"]'),
        CLASSES,
        "recipe.toml:4:10: error: there are 2 labels, and classes scores 3 classes",
    ),
    "a label twice": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{LABELS}["over", "over", "under"]'),
        CLASSES,
        "two labels are the same",
    ),
    "an unknown label": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{LABELS}["over", "under", "besides"]'),
        CLASSES,
        "labels.tsv:3:10: error: unknown label `beside`",
    ),
    "an unknown label that is in the text too": (
        RECIPE_OF_CLASSES.replace("labels.tsv", "first.tsv")
        .replace("valid = 6", "source = 3\ntarget = 2")
        .replace('"model.toml"', f'{LABELS}["over", "under", "besides"]'),
        CLASSES,
        "first.tsv:2:4: error: unknown label `beside`",
    ),
    "an unknown held-out label": (
        RECIPE_OF_CLASSES.replace("valid = 6", 'valid = "other.tsv"'),
        CLASSES,
        "other.tsv:2:10: error: unknown label `above`",
    ),
    "a label without a text": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{LABELS}["over", "under", "beside", "in"]'),
        CLASSES.replace("n_classes = 3", "n_classes = 4"),
        "recipe.toml:4:38: error: no text of the training data has the label `in`",
    ),
    "an empty label": (
        RECIPE_OF_CLASSES.replace("labels.tsv", "half.tsv"),
        CLASSES,
        "half.tsv:2:9: error: the target is missing",
    ),
    "an empty text": (
        RECIPE_OF_CLASSES.replace("labels.tsv", "half.tsv"),
        CLASSES,
        "half.tsv:3:1: error: the source is missing",
    ),
    "labels for a model that does not classify": (
        RECIPE.replace('"model.toml"', f'{LABELS}["over"]'),
        MODEL,
        "`labels` has no effect: filler does not classify",
    ),
    "text for a classifier": (
        RECIPE.replace("filler", "classes"),
        CLASSES,
        "the data is text, and the model learns from texts with labels",
    ),
    "pairs for a model that fills in": (
        RECIPE_OF_CLASSES,
        MODEL,
        'a model that fills in masked tokens learns from `kind = "text"`',
    ),
    "a single class": (
        RECIPE_OF_CLASSES,
        CLASSES.replace("n_classes = 3", "n_classes = 1"),
        "classes has a single class, so that there is nothing to choose",
    ),
    "classes of each token": (
        RECIPE_OF_CLASSES,
        CLASSES.replace('"classifier"', '"token_classifier"'),
        "the data is pairs, and the model learns from lists of words with lists of labels",
    ),
    "masking where nothing is masked": (
        RECIPE_OF_CLASSES + "[masking]\nrate = 0.3\n",
        CLASSES,
        "`[masking]` has no effect: classes fills in no masked tokens",
    ),
    "more than all": (
        RECIPE + "[masking]\nrandom = 0.3\n",
        MODEL,
        "`masked` and `random` are more than all",
    ),
    "no mask token": (
        RECIPE.replace("words.json", "unmasked.json"),
        MODEL,
        "the tokenizer has no mask token: neither `[MASK]` nor `<mask>`",
    ),
    "another padding": (
        RECIPE,
        MODEL.replace("pad_id = 0", "pad_id = 1"),
        "padding is 0 for the tokenizer, and 1 for the model",
    ),
    "too small a vocabulary": (
        RECIPE,
        MODEL.replace(f"vocab = {len(VOCAB)}", "vocab = 9"),
        f"the tokenizer and the model disagree: {len(VOCAB)} tokens, and a vocabulary of 9",
    ),
    "too few positions": (
        RECIPE.replace("max_length = 12", "max_length = 13"),
        MODEL,
        "sequences of max_length = 13 tokens do not fit: filler has positions for 12",
    ),
    "no other model": (
        RECIPE_OF_CLASSES.replace('"model.toml"', '"model.toml"\nweights = "nowhere"'),
        CLASSES,
        "there is no weights file and no model `nowhere`",
    ),
    "a head of another kind": (
        RECIPE_OF_CLASSES.replace('"model.toml"', OTHER),
        CLASSES,
        "`head.dense.weight` is of another kind of `head` there",
    ),
    "what to let begin anew": (
        RECIPE_OF_CLASSES.replace('"model.toml"', OTHER),
        CLASSES,
        'to let them begin anew, state `new = ["head.*"]`',
    ),
    "an encoder of another shape": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{OTHER}\nnew = ["head.*"]'),
        CLASSES.replace("d_ff = 32", "d_ff = 31"),
        "`encoder.layers.0.ffn.up_proj.weight` is [32, 16] there, and [31, 16] in classes",
    ),
    "new weights that are not there": (
        RECIPE_OF_CLASSES.replace('"model.toml"', f'{OTHER}\nnew = ["heads.*"]'),
        CLASSES,
        "`heads.*` is the name of no weight of classes",
    ),
    "new weights of no other model": (
        RECIPE_OF_CLASSES.replace('"model.toml"', '"model.toml"\nnew = ["head.*"]'),
        CLASSES,
        "without `weights`, all weights begin anew",
    ),
    "two models": (
        RECIPE_OF_CLASSES.replace('"model.toml"', '"filler"\nweights = "filler"'),
        CLASSES,
        "`weights` is for a spec, and `model` is a saved model, which has weights",
    ),
}


@pytest.mark.parametrize(("recipe", "model", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_its_place(
    project: Path, refused: Refused, recipe: str, model: str, told: str
) -> None:
    write_encoder(project, recipe, model)
    zoo.save(zoo.build(MODEL), "filler")
    Path("other.tsv").write_text("a x is u\tover\na y is v\tabove\n")
    Path("first.tsv").write_text("1\tover\ta x is u\n2\t beside\tbeside y\n")
    Path("half.tsv").write_text("a x is u\tover\na y is v\t\n\tunder\n")
    unmasked = Path("words.json").read_text().replace("[MASK]", "[NONE]")
    Path("unmasked.json").write_text(unmasked)
    assert told in refused("validate", "recipe.toml")
    assert told in refused("train", "recipe.toml", "-o", "out")


def test_a_room_for_special_tokens_alone(project: Path, refused: Refused) -> None:
    write_encoder(project, RECIPE.replace("max_length = 12", "max_length = 2"))
    for command in (("validate", "recipe.toml"), ("train", "recipe.toml", "-o", "out")):
        told = refused(*command)
        assert "recipe.toml:25:14: error: max_length = 2 leaves no room beside 2 special" in told


# --- long texts ---------------------------------------------------------------------------------


def test_long_texts(train: Train, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is cut into pieces; a text with a label is truncated, which is told."""
    short = RECIPE.replace("max_length = 12", "max_length = 4")
    assert train("text", short)["examples"] == {"train": 40 * 2, "valid": 24, "test": 0}
    packed = RECIPE.replace('"valid.txt"', '"valid.txt"\npacked = true')
    n_tokens = 36 * 6 + 3 * 6 + 5
    assert train("packed", packed)["examples"]["train"] == -(-n_tokens // 12)
    capsys.readouterr()
    labelled = RECIPE_OF_CLASSES.replace("max_length = 12", "max_length = 5")
    assert train("classes", labelled, CLASSES)["examples"] == {"train": 30, "valid": 6, "test": 0}
    told = capsys.readouterr().err
    assert "train: 30 of 30 texts are longer than max_length = 5, and truncated" in told


# --- the shipped recipes ------------------------------------------------------------------------


def test_the_shipped_recipes_train_one_after_the_other(project: Path) -> None:
    """On a few texts, with smaller numbers."""
    smaller = {"= 8000": "= 265", "= 10000": "= 2", "= 2000": "= 2", "d_ff = 1024": "d_ff = 16"}
    smaller |= {
        "= 500": "= 4",
        "= 256": "= 16",
        "bfloat16": "float32",
        "warmup = 100": "warmup = 1",
    }
    shipped = Path(__file__).parent.parent / "recipes"
    Path("text.txt").write_text("".join(f"{text}\n" for text, _ in LABELLED))
    kinds = ("a", "b") * len(LABELLED)
    lines = [f"{text}\t{kind}\n" for (text, _), kind in zip(LABELLED, kinds, strict=False)]
    Path("labels.tsv").write_text("".join(lines))
    for name in ("encoder-small.masked", "encoder-small.classes"):
        folder = project / "recipes" / name
        folder.mkdir(parents=True)
        for file in ("model.toml", "recipe.toml"):
            text = (shipped / name / file).read_text()
            for before, after in smaller.items():
                text = text.replace(before, after)
            (folder / file).write_text(text)
        assert run(["train", str(folder / "recipe.toml"), "--data", "."]) == 0
    assert names("encoder-small.classes") == ("a", "b")
    assert zoo.TextModel.load("encoder-small.masked").run(["a <mask>"])[0]["task"] == "fill_mask"
