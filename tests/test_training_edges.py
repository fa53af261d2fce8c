"""Recipes at their edges: tokenizers and texts that leave a model nothing to learn from, and an
interruption while a checkpoint is written."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, normalizers
from toy_encoders import CLASSES, MODEL, RECIPE, RECIPE_OF_CLASSES, SPECIALS, VOCAB, write_encoder
from toy_training import MODEL as PAIRS
from toy_training import RECIPE as RECIPE_OF_PAIRS
from toy_training import write_toy
from transformers import BertConfig, BertForMaskedLM
from trials import Refused
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run
from zoo.errors import InputError, TrainingError
from zoo.training import checkpoint_state, checkpoints
from zoo.training import data as data_module
from zoo.training.data import DataReader
from zoo.training.data_tables import Datasets
from zoo.training.extras import OF_TRAIN
from zoo.training.fields import field
from zoo.training.hub import read_split
from zoo.training.reader_objective import ReaderObjective
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.sides import Reader, sides_of
from zoo.training.tables import OfModel, TokenizerFiles
from zoo.training.tokens import read_token_files

pytestmark = pytest.mark.usefixtures("without_pictures")

FILES = 'kind = "files"\nsource = "words.json"\npad = "[PAD]"'
SHORT = RECIPE.replace("steps = 8", "steps = 1")
SHORT_OF_CLASSES = RECIPE_OF_CLASSES.replace("steps = 8", "steps = 1")


def words(
    path: Path,
    *,
    flagged: bool = True,
    encloses: bool = True,
    unknown: bool = True,
    drops: str = "",
) -> None:
    """Write a tokenizer of whole words."""
    tokenizer = word_tokenizer(
        VOCAB,
        "[UNK]" if unknown else None,
        special=SPECIALS if flagged else (),
        single="[CLS] $A [SEP]" if encloses else None,
    )
    if drops:
        tokenizer.normalizer = normalizers.Replace(Regex(drops), "")
    tokenizer.save(str(path))


def reader(model: str = MODEL) -> Reader:
    sides = sides_of(zoo.read_spec(model))
    assert isinstance(sides, Reader)
    return sides


# --- tokenizers ---------------------------------------------------------------------------------


def test_special_tokens_that_a_file_does_not_flag_are_not_predicted(tmp_path: Path) -> None:
    words(tmp_path / "words.json", flagged=False)
    table = TokenizerFiles(source="words.json", pad="[PAD]")
    tokens = read_token_files(tmp_path / "words.json", None, table, reader())
    assert isinstance(tokens, ReaderTokens)
    masker = ReaderObjective(tokens, 12).masker
    assert masker is not None
    assert {0, 2, 3, 4} <= {*masker.special}
    assert not {0, 2, 3, 4} & {*masker.ordinary}


def test_any_token_fills_up_where_the_model_states_no_padding(tmp_path: Path) -> None:
    """A mask hides it, so that a tokenizer of a saved model need not have one of a certain name."""
    words(tmp_path / "words.json")
    side = reader(MODEL.replace("pad_id = 0\n", ""))
    tokens = read_token_files(tmp_path / "words.json", None, OfModel(), side)
    assert tokens.pad == 0


def test_the_tokenizer_of_an_imported_model_under_a_new_head(project: Path) -> None:
    """Nothing is told of its padding, in training and when the result is measured again."""
    write_encoder(project, SHORT_OF_CLASSES)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        pad_token_id=0,
    )
    BertForMaskedLM(config).save_pretrained("source")
    (project / "words.json").rename("source/tokenizer.json")
    zoo.import_folder("source", "bert")
    spec = zoo.load("bert").spec.to_dict()
    spec["head"] = {"kind": "classifier", "n_classes": 3}
    Path("model.toml").write_text(zoo.read_spec(spec).to_toml())
    other = '"model.toml"\nweights = "bert"\nnew = ["head.*"]'
    recipe = SHORT_OF_CLASSES.replace('"model.toml"', other).replace(FILES, 'kind = "of_model"')
    Path("recipe.toml").write_text(recipe.replace("valid = 6", "valid = 6\ntest = 5"))
    metrics = zoo.train("recipe.toml", output="out")
    assert metrics is not None
    assert zoo.score("out", data=".")["macro_f1"] == metrics["macro_f1"]


REFUSALS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "padding that is the mask token": (
        SHORT.replace('"[PAD]"', '"[MASK]"'),
        MODEL.replace("pad_id = 0", "pad_id = 4"),
        {},
        "the model hides `[MASK]`, as its spec states `pad_id = 4`, and has to read it too",
    ),
    "padding that begins each text": (
        SHORT_OF_CLASSES.replace('"[PAD]"', '"[CLS]"'),
        CLASSES.replace("pad_id = 0", "pad_id = 2"),
        {},
        "the model hides `[CLS]`, as its spec states `pad_id = 2`, and has to read it too",
    ),
    "a word without a token": (
        SHORT.replace("lines.txt", "odd.txt"),
        MODEL,
        {"unknown": False},
        "the tokenizer cannot encode the text: WordLevel error: Missing [UNK] token",
    ),
    "a text without tokens": (
        SHORT_OF_CLASSES,
        CLASSES,
        {"encloses": False, "drops": "b y.*"},
        "no tokens are made of the text `b y is ",
    ),
    "a learned padding that is the mask token": (
        SHORT.replace(FILES, 'kind = "bpe"\npad = "<mask>"'),
        MODEL,
        {},
        "recipe.toml:10:2: error: `<mask>` is the mask token",
    ),
    "a learned token with a space": (
        SHORT.replace(FILES, 'kind = "bpe"\nbos = "a b"'),
        MODEL,
        {},
        "recipe.toml:12:7: error: a learned token has no white space, `:` or `$`",
    ),
    "a learned token that means the text": (
        SHORT.replace(FILES, 'kind = "bpe"\neos = "$A"'),
        MODEL,
        {},
        "recipe.toml:12:7: error: a learned token has no white space, `:` or `$`",
    ),
    "a learned token without a character": (
        SHORT.replace(FILES, 'kind = "bpe"\npad = ""'),
        MODEL,
        {},
        "recipe.toml:12:7: error: `pad` must have at least 1 character, not 0",
    ),
    "a token of the model without a character": (
        SHORT.replace(FILES, 'kind = "of_model"\neos = ""'),
        MODEL,
        {},
        "recipe.toml:12:7: error: `eos` must have at least 1 character, not 0",
    ),
    "a learned token that is another one too": (
        SHORT.replace(FILES, 'kind = "bpe"\nbos = "</s>"'),
        MODEL,
        {},
        "recipe.toml:12:7: error: pad, bos and eos are three tokens",
    ),
    "a second tokenizer, for targets that there are not": (
        SHORT.replace("words.json", 'words.json"\ntarget = "other.json'),
        MODEL,
        {},
        "a second tokenizer is for targets, and this model has none",
    ),
    "held-out texts without a word": (
        SHORT.replace("valid.txt", "words.txt"),
        MODEL,
        {},
        "recipe.toml:8:9: error: the tokenizer makes no tokens of the texts of `valid`",
    ),
    "a tokenizer that is a folder": (
        SHORT.replace("words.json", "."),
        MODEL,
        {},
        "recipe.toml:10:2: error: the tokenizer `.` cannot be read: Is a directory",
    ),
    "a tokenizer that no file can be": (
        SHORT.replace("words.json", r"\u0000"),
        MODEL,
        {},
        "recipe.toml:10:2: error: the tokenizer `\ufffd` cannot be read: ",
    ),
    "a model that no file can be": (
        SHORT.replace("model.toml", "m" * 300),
        MODEL,
        {},
        "recipe.toml:3:9: error: there is no file and no model `mmm",
    ),
    "more classes than memory has places": (
        SHORT_OF_CLASSES,
        CLASSES.replace("n_classes = 3", f"n_classes = {10**10}"),
        {},
        "the training data has 3 labels, and classes scores 10000000000 classes",
    ),
    "a single label": (
        SHORT_OF_CLASSES.replace("labels.tsv", "one.tsv").replace("valid = 6", ""),
        CLASSES.replace("n_classes = 3", "n_classes = 2"),
        {},
        "help: a classifier learns from texts of two labels at least",
    ),
}


@pytest.mark.parametrize(("recipe", "model", "tokenizer", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_leaves_nothing_to_learn_is_refused(
    project: Path,
    refused: Refused,
    recipe: str,
    model: str,
    tokenizer: dict[str, Any],
    told: str,
) -> None:
    write_encoder(project, recipe, model)
    words(project / "words.json", **tokenizer)
    words(project / "other.json")
    (project / "words.txt").write_text("[MASK]\n[CLS] [SEP]\n")
    (project / "odd.txt").write_text("a x is u\nb y is odd\n")
    (project / "one.tsv").write_text("a x\tunder\nb y\tunder\n")
    assert told in refused("train", "recipe.toml", "-o", "out")


def test_a_source_without_tokens_is_refused(project: Path, refused: Refused) -> None:
    recipe = RECIPE_OF_PAIRS.replace('"bpe"', '"files"\nsource = "words.json"\npad = "[PAD]"')
    recipe = recipe.replace('"[PAD]"', '"[PAD]"\nbos = "[CLS]"\neos = "[SEP]"')
    write_toy(project, recipe, PAIRS)
    words(project / "words.json", encloses=False, drops="ein Hund.*")
    told = refused("train", "recipe.toml", "-o", "out")
    assert "no tokens are made of the text `ein Hund ist " in told


def test_a_text_that_the_tokenizer_cannot_encode_is_told_when_it_is_run(
    project: Path, refused: Refused
) -> None:
    zoo.train(write_encoder(project, SHORT, MODEL), output="out")
    words(project / "out" / "tokenizer.json", unknown=False)
    told = refused("run", "out", "a [MASK] nowhere")
    assert "the tokenizer cannot encode the text: WordLevel error" in told


def test_texts_without_a_word_are_not_measured(project: Path) -> None:
    zoo.train(write_encoder(project, SHORT, MODEL), output="out")
    Path("words.txt").write_text("[MASK]\n")
    with pytest.raises(TrainingError, match="the texts have special tokens alone"):
        zoo.score("out", data="words.txt")


def test_a_classifier_is_measured_on_pairs(project: Path) -> None:
    zoo.train(write_encoder(project, SHORT_OF_CLASSES, CLASSES), output="out")
    with pytest.raises(InputError, match="this recipe's data are pairs"):
        zoo.score("out", data=".", window=5)


def test_an_unknown_label_is_told_once(project: Path, refused: Refused) -> None:
    """Also if the training data and what is held out of it both have it."""
    stated = '"model.toml"\nlabels = ["under", "beside", "above"]'
    write_encoder(project, SHORT_OF_CLASSES.replace('"model.toml"', stated), CLASSES)
    assert refused("train", "recipe.toml", "-o", "out").count("unknown label `over`") == 1


def test_of_many_unknown_labels_the_first_are_looked_up(
    project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, the data is read again: of thousands, that would take minutes."""
    stated = '"model.toml"\nlabels = ["under", "beside", "above"]'
    write_encoder(project, SHORT_OF_CLASSES.replace('"model.toml"', stated), CLASSES)
    Path("labels.tsv").write_text("".join(f"a {n}\tlabel {n}\n" for n in range(300)))
    looked_up: list[str] = []

    def place_of_label(data: Any, folder: Path, part: str, label: str) -> Any:
        looked_up.append(label)
        return data_module.place_of_label(data, folder, part, label)

    monkeypatch.setattr("zoo.training.labels.place_of_label", place_of_label)
    told = refused("train", "recipe.toml", "-o", "out")
    assert "labels.tsv:1:5: error: unknown label `label 0`" in told
    assert "error: 292 more unknown labels" in told
    assert len(looked_up) == 8


# --- data sets ----------------------------------------------------------------------------------


def test_a_field_with_several_values_is_no_label(
    project: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    table = 'kind = "datasets"\npath = "rows"\nsource = "text"\ntarget = "label"'
    recipe = SHORT_OF_CLASSES.replace('kind = "tsv"\ntrain = "labels.tsv"', table)
    write_encoder(project, recipe.replace("valid = 6", ""), CLASSES)
    Path("rows").mkdir()
    rows = [{"text": f"a x {word}", "label": [word]} for word in ("u", "v", "w")]
    Path("rows/train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    told = refused("train", "recipe.toml", "-o", "out")
    assert "the data is texts with lists of labels, and the model learns from texts" in told
    nested = [{"text": row["text"], "label": {"is": row["label"][0]}} for row in rows]
    Path("rows/train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in nested))
    assert "help: name one of them: `label.is`" in refused("train", "recipe.toml", "-o", "out")
    Path("recipe.toml").write_text(Path("recipe.toml").read_text().replace("label", "label.is"))
    assert run(["train", "recipe.toml", "-o", "out"]) == 0


def test_a_nested_label_has_its_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "of": {"label": datasets.ClassLabel(names=["under", "over"])},
        }
    )
    rows = {"text": ["a", "b"], "of": [{"label": 1}, {"label": 0}]}
    Path("rows").mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet("rows/train.parquet")
    table = Datasets(path="rows", source="text", target="of.label")
    found = [line[:2] for line in read_split(table, Path(), "train", None)]
    assert found == [("a", "over"), ("b", "under")]


def test_a_secret_label_is_missing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GLUE's tests have -1."""
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    label = datasets.ClassLabel(names=["under", "over"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    rows = {"text": ["a", "b"], "label": [1, -1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet("rows.parquet")
    table = Datasets(path="rows.parquet", source="text", target="label")
    with pytest.raises(TrainingError, match=r"rows\.parquet \(train\):2: .*target is missing"):
        DataReader(table, Path()).splits(0)
    numbers = [field({"label": number}, "label", label.names) for number in (-1, 0, 1, 2)]
    assert numbers == ["", "under", "over", ""]


def test_bytes_are_no_label() -> None:
    """As a data set may hold them."""
    with pytest.raises(TrainingError, match="`label` is no text or label, but of the type bytes"):
        field({"label": b"a"}, "label")


# --- interruption -------------------------------------------------------------------------------


def test_an_interruption_while_a_checkpoint_is_written_is_no_error_of_writing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch turns each exception of its writer into one of its own, also that of Ctrl+C."""
    path = write_encoder(project, RECIPE, MODEL)
    whole = zoo.train(path, output="whole")
    writer = checkpoints.HuggingFaceStorageWriter
    write, calls = writer.write_data, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments, **options)

    monkeypatch.setattr(writer, "write_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        zoo.train(path, output="out")
    (left,) = checkpoint_state.checkpoints(project / "out" / "checkpoints")
    assert left.name == "step-00000003"
    resumed = zoo.train(path, output="out", resume=True)
    assert whole is not None
    assert resumed is not None
    assert resumed["content_digest"] == whole["content_digest"]


def test_two_runs_in_one_folder_are_told_of_each_other(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_encoder(project, RECIPE, MODEL)
    save = checkpoints.save

    def disturbed(*arguments: Any, **options: Any) -> Any:
        found = save(*arguments, **options)
        shutil.copytree("out/checkpoints/.step-00000003.tmp", "out/checkpoints/step-00000003")
        return found

    monkeypatch.setattr(checkpoints, "save", disturbed)
    with pytest.raises(
        TrainingError, match=r"Directory not empty(.|\n)*another run may be writing"
    ):
        zoo.train(path, output="out")


def test_a_damaged_checkpoint_is_in_the_way_until_it_is_removed(project: Path) -> None:
    path = write_encoder(project, RECIPE.replace("log_every = 2", "average = 2"), MODEL)
    whole = zoo.train(path, output="out")
    damaged = project / "out" / "checkpoints" / "step-00000008"
    (damaged / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="without its folder, `--resume` goes on from the one"):
        zoo.train(path, output="out", resume=True)
    shutil.rmtree(damaged)
    resumed = zoo.train(path, output="out", resume=True)
    assert whole is not None
    assert resumed is not None
    assert resumed["content_digest"] == whole["content_digest"]


def test_a_folder_without_a_run_has_none_to_go_on_with(project: Path, refused: Refused) -> None:
    write_encoder(project, RECIPE, MODEL)
    (project / "notes").mkdir()
    (project / "notes" / "notes.txt").write_text("")
    told = refused("train", "recipe.toml", "-o", "notes")
    assert "help: `-o` names another folder" in told


def test_other_weights_to_start_from_are_another_run(project: Path) -> None:
    """The checkpoint has not started from them, though the result would say so."""
    path = write_encoder(project, SHORT, MODEL)
    zoo.train(path, output="mine")
    further = RECIPE.replace('"model.toml"', '"mine"').replace(FILES, 'kind = "of_model"')
    Path("further.toml").write_text(further)
    zoo.train("further.toml", output="out")
    assert zoo.train("further.toml", output="out", resume=True) is not None
    shutil.rmtree("mine")
    path.write_text(SHORT.replace('"model.toml"', '"model.toml"\nseed = 1'))
    zoo.train(path, output="mine")
    with pytest.raises(TrainingError, match="is of another model"):
        zoo.train("further.toml", output="out", resume=True)


# --- lengths ------------------------------------------------------------------------------------


def test_a_length_that_no_text_has_truncates_nothing(project: Path) -> None:
    model = CLASSES.replace('{ kind = "learned", max_length = 12 }', '"rotary"')
    recipe = SHORT_OF_CLASSES.replace("max_length = 12", f"max_length = {10**29}")
    assert zoo.train(write_encoder(project, recipe, model), output="out") is not None


@pytest.mark.parametrize("name", OF_TRAIN)
def test_what_the_end_of_a_run_needs_is_asked_for_before_it_begins(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_toy(project, RECIPE_OF_PAIRS)
    monkeypatch.setitem(sys.modules, name, None)
    told = f"this needs the package `{name}`, which is not installed\n.*zoo\\[train\\]"
    with pytest.raises(TrainingError, match=told):
        zoo.train(path, output="out")
    assert not Path("out").exists()


def test_test_data_of_its_own_is_measured_without_the_other_parts(project: Path) -> None:
    recipe = SHORT_OF_CLASSES.replace("valid = 6", 'valid = 6\ntest = "test.tsv"')
    path = write_encoder(project, recipe, CLASSES)
    Path("test.tsv").write_text("a x is u\tunder\nb y is v\tunder\n")
    metrics = zoo.train(path, output="out")
    assert metrics is not None
    Path("labels.tsv").unlink()
    found = zoo.score("out", data=".")
    assert found["texts"] == 2
    assert {key: metrics[key] for key in found} == found


def test_a_measurement_is_not_called_training(
    project: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    zoo.train(write_toy(project, RECIPE_OF_PAIRS.replace("valid = 4", "test = 4")), output="out")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    told = "error: this needs the package `sacrebleu`, which is not installed\n"
    assert refused("score", "out", "--data", ".").startswith(told)


def test_the_packages_that_are_asked_for_are_those_of_the_extra() -> None:
    root = Path(zoo.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["train"]
    assert [one.partition(">")[0] for one in extra] == list(OF_TRAIN)
