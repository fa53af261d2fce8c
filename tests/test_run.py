"""`zoo run`: the task of a model, with text if its folder has a tokenizer, otherwise with ids."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from random_values import add_noise
from transformers import PreTrainedTokenizerFast
from trials import Refused, reported, said
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run
from zoo.errors import InputError, WeightsError, ZooError
from zoo.running.settings import Settings
from zoo.running.text import Numbers, Text
from zoo.running.tokenized import read_text

WORDS = ["[PAD]", "[EOS]", "[MASK]", "ich", "ein", "bier", "a", "beer", "I", "want"]
SIZES = {"format": 1, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
VOCAB = len(WORDS)
MODELS: dict[str, dict[str, Any]] = {
    "pair": {"builder": "encoder_decoder", "source_vocab": VOCAB, "target_vocab": VOCAB},
    "decoder": {"builder": "decoder", "vocab": VOCAB},
    "mlm": {"builder": "encoder", "vocab": VOCAB, "head": "mlm"},
    "states": {"builder": "encoder", "vocab": VOCAB, "head": "none"},
    "pooled": {"builder": "encoder", "vocab": VOCAB, "head": "pooler"},
    "sentence": {"builder": "encoder", "vocab": VOCAB, "head": "sentence"},
    "classes": {
        "builder": "encoder",
        "vocab": VOCAB,
        "head": {"kind": "classifier", "n_classes": 3},
    },
    "tokens": {
        "builder": "encoder",
        "vocab": VOCAB,
        "head": {"kind": "token_classifier", "n_classes": 3},
    },
    "ranks": {
        "builder": "encoder",
        "vocab": VOCAB,
        "head": {"kind": "classifier", "n_classes": 1},
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, spec in MODELS.items():
        zoo.save(add_noise(zoo.build({**SIZES, **spec, "name": name}), 0.5), folder / name)
    return folder


@pytest.fixture
def with_words(saved: Path, project: Path) -> Callable[[str], str]:
    """Return a function that copies a model into the working directory, with a tokenizer of
    words."""

    def copy(name: str) -> str:
        shutil.copytree(saved / name, project / name)
        tokenizer = word_tokenizer(WORDS, "[PAD]", special=WORDS[:3])
        tokenizer.save(str(project / name / "tokenizer.json"))
        ids = {"eos_token_id": 1, "decoder_start_token_id": 0, "bos_token_id": None}
        (project / name / "generation_config.json").write_text(json.dumps(ids))
        return name

    return copy


@pytest.fixture
def ten_positions(project: Path) -> str:
    """Make a decoder in the working directory."""
    position = {"kind": "learned", "max_length": 10}
    model = zoo.build({**SIZES, **MODELS["decoder"], "name": "short", "position": position})
    zoo.save(model, project / "short")
    return "short"


def test_text_from_the_standard_input(
    saved: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = str(saved / "decoder")
    for raw in (b"3 9 4\n", b"3 9 4", b"\xef\xbb\xbf3 9 4\r\n"):
        for as_one in (["-"], []):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
            expected = said(capsys, decoder, "3 9 4", "-n", "5")
            assert said(capsys, decoder, *as_one, "-n", "5") == expected
    # The mark is skipped at the beginning alone.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"3 9\n\xef\xbb\xbf4\n")))
    assert run(["run", decoder, "-n", "5"]) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    told = refused("run", decoder, "-")
    assert "the standard input is not UTF-8" in told
    assert "help: `iconv -f latin1 -t utf-8` converts" in told
    monkeypatch.setattr(sys, "stdin", None)  # closed
    assert "the text is empty" in refused("run", decoder, "-")


def test_another_dtype(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(saved / "pooled")
    as_stored = reported(capsys, folder, "3 4 5")
    rounded = reported(capsys, folder, "3 4 5", "--dtype", "bfloat16")
    assert rounded["embedding"] != as_stored["embedding"]
    model = zoo.TextModel.load(folder, dtype=torch.bfloat16)
    assert repr(model) == f"<TextModel {model.transformer.spec.name}>"
    (expected,) = model.run(["3 4 5"])
    assert rounded == expected


def test_another_device(saved: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    decoder, mlm = str(saved / "decoder"), str(saved / "mlm")
    assert reported(capsys, decoder, "3 4", "--device", "cpu") == reported(capsys, decoder, "3 4")
    assert "the device `cpi` cannot be used" in refused("run", decoder, "3 4", "--device", "cpi")
    # A device without values: the option reaches the models.
    told = "is on the device `meta`, where it has no values"
    for model, text in ((decoder, "3 4"), (mlm, "3 2")):
        asked = ("run", model, text, "--device", "meta", *(("--mask-id", "2") * (model == mlm)))
        assert told in refused(*asked)
    assert told in refused("run", decoder, "3 4", "--device", "meta", "--draft", decoder)
    told = refused("run", decoder, "3 4", "--cuda-graph")
    assert "decoder is on the device `cpu`, and `--cuda-graph` is for models on a GPU" in told
    assert 'help: load it on the `--device` "cuda"' in told
    assert "mlm generates no text" in refused("run", mlm, "3 2", "--cuda-graph")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ich \udcff", r"'ich \\udcff' is not a text that can be written in UTF-8"),
        (None, "a text is a string, not None"),
        (b"ich", "a text is a string, not b'ich'"),
    ],
)
def test_what_is_no_text(
    with_words: Callable[[str], str], refused: Refused, text: Any, told: str
) -> None:
    folder = with_words("decoder")
    with pytest.raises(InputError, match=f"text 2: error: {told}"):
        zoo.TextModel.load(folder).run(["ich", text])
    message = refused("run", folder, "ich \udcff")
    assert "'ich \\udcff' is not a text" in message
    assert "the locale says how a command reads its arguments" in message


@pytest.mark.parametrize("name", ["decoder", "classes"])
def test_what_is_no_list_of_texts(saved: Path, name: str) -> None:
    model = zoo.TextModel.load(saved / name)
    for texts in ("3 4", None, 3):
        with pytest.raises(InputError, match="texts are a list, of one text too"):
            model.run(texts)  # type: ignore[arg-type]
    assert model.run(text for text in ("3 4", "5")) == model.run(["3 4", "5"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "greedy"}, "`method` is one of zoo.Greedy(...), "),
        ({"eos": 1.5}, "`eos` and `stop` hold ids, which are integers, not 1.5"),
    ],
)
def test_what_is_no_method_and_no_end(
    ten_positions: str, asked: dict[str, Any], message: str
) -> None:
    model = zoo.TextModel.load(ten_positions)
    with pytest.raises(InputError, match=re.escape(message)):
        model.run(["3 4"], max_new_tokens=2, **asked)
    with pytest.raises(InputError, match=re.escape(message)):
        list(model.stream("3 4", max_new_tokens=2, **asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"method": zoo.Beam()},
        {"eos": 3},
        {"start": 0},
        {"draft": zoo.Lookup()},
        {"cuda_graph": True},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_is_asked_of_a_model_that_does_not_generate(
    saved: Path, asked: dict[str, Any]
) -> None:
    (name,) = asked
    with pytest.raises(InputError, match=f"mlm generates no text: leave `{name}` out"):
        zoo.TextModel.load(saved / "mlm").run(["3 2"], mask_id=2, **asked)


@pytest.mark.parametrize("number", [None, "5", 0])
def test_what_is_no_number_of_tokens(ten_positions: str, number: Any) -> None:
    model = zoo.TextModel.load(ten_positions)
    message = f"`max_new_tokens` is an integer of at least 1, not {number!r}"
    with pytest.raises(InputError, match=message):
        model.run(["3 4"], max_new_tokens=number)
    with pytest.raises(InputError, match=message):
        list(model.stream("3 4", max_new_tokens=number))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sample", "--top-p", "1.5"), "`--top-p` must be at most 1, not the float `1.5`"),
        (("--sample", "--top-k", "0"), "`--top-k` must be at least 1"),
        (("--sample", "--min-p", "2"), "`--min-p` must be at most 1"),
        (("--sample", "--seed", "-1"), "`--seed` must be at least 0"),
        (("--repetition-penalty", "0"), "`--repetition-penalty` must be at least"),
        (("-n", "8", "--eos", "99"), "`--eos` holds the id 99"),
        (("-n", "10"), "`--max-new-tokens` can be 9 at most"),
    ],
)
def test_options_are_named_as_they_are_typed(
    ten_positions: str, refused: Refused, options: tuple[str, ...], told: str
) -> None:
    assert told in refused("run", ten_positions, "3 4", *options)


@pytest.mark.parametrize(
    "text", ["drei", "3 1_0", "+5", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5000, None, 3, [3, 4]]
)
def test_what_is_no_text_of_ids(saved: Path, text: Any) -> None:
    with pytest.raises(InputError, match="so text is written as ids"):
        zoo.TextModel.load(saved / "decoder").run(["3", text])


@pytest.mark.parametrize("name", ["pair", "decoder"])
@pytest.mark.parametrize("options", [(), ("--beams", "3"), ("--sample", "--top-k", "4")])
def test_generating(
    with_words: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    name: str,
    options: tuple[str, ...],
) -> None:
    folder = with_words(name)
    found = reported(capsys, folder, "ich want ein bier", "-n", "6", *options)
    method = {
        (): zoo.Greedy(),
        ("--beams", "3"): zoo.Beam(size=3),
    }.get(options, zoo.Sampling(top_k=4))
    start = {"start": 0} if name == "pair" else {}
    model = zoo.load(folder)
    (wanted,) = zoo.generate(model, [[3, 9, 4, 5]], max_new_tokens=6, eos=1, method=method, **start)
    assert found["task"] == ("translate" if name == "pair" else "generate")
    assert tuple(found["ids"]) == wanted.ids
    words = [WORDS[id_] for id_ in wanted.ids if id_ > 2]
    assert found["text"] == " ".join(words)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (("--beams", "3"), zoo.Beam(size=3, n_answers=2)),
        (("--sample",), zoo.Sampling(n_answers=2)),
    ],
)
def test_several_answers(
    with_words: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    method: Any,
) -> None:
    folder = with_words("pair")
    model = zoo.load(folder)
    (wanted,) = zoo.generate(model, [[3, 9, 4]], max_new_tokens=6, eos=1, start=0, method=method)
    asked = (folder, "-n", "6", "--answers", "2", *options)
    found = reported(capsys, *asked, "ich want ein")
    both = [found, *found["others"]]
    assert [tuple(one["ids"]) for one in both] == [wanted.ids, wanted.others[0].ids]
    assert [one["score"] for one in both] == [wanted.score, wanted.others[0].score]
    texts = [one["text"] for one in both]
    for at_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda it=at_terminal: it)
        assert said(capsys, *asked, "ich want ein") == "".join(f"{text}\n" for text in texts)
    # Of a blank line too there are as many, so that one knows which line each is of.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\nich want ein\n")))
    assert said(capsys, *asked) == "".join(f"{text}\n" for text in ["", "", *texts])


def test_answers_that_are_refused(
    with_words: Callable[[str], str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("run", with_words("decoder"), "ich", "--answers", "3")
    assert "--answers goes with --sample or --beams" in refused(*asked)
    told = refused(*asked, "--beams", "2")
    assert "`--answers` is at most the number of beams, 2, not 3" in told
    assert "mlm generates no text" in refused("run", with_words("mlm"), "ich", "--answers", "3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ich\n")))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    told = refused("run", "decoder", "--answers", "3", "--sample", "--chat")
    assert "--answers: a chat that you type goes on with one answer" in told


def test_each_batch_draws_numbers_of_its_own(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeating a text gives different samples, also if the lines of the standard input are read in
    several portions and computed in several batches."""
    monkeypatch.setattr("zoo.running.batches.BATCH", 4)
    monkeypatch.setattr("zoo.cli.standard_input.AT_ONCE", 8)
    said = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"3 9\n" * 20)))
        run(["run", str(saved / "decoder"), "--sample", "-n", "20"])
        said.append(capsys.readouterr().out.splitlines())
    assert said[0] == said[1]
    assert len(set(said[0])) == 20
    # The first batch draws the same as `generate`.
    model, method = zoo.load(saved / "decoder"), zoo.Sampling()
    found = zoo.generate(model, [[3, 9]] * 4, max_new_tokens=20, method=method)
    assert said[0][:4] == [" ".join(map(str, one.ids)) for one in found]


def test_generating_from_ids(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = str(saved / "pair"), "3 9 4", "--start", "0", "-n", "5"
    (whole,) = zoo.generate(zoo.load(saved / "pair"), [3, 9, 4], max_new_tokens=5, start=0)
    assert said(capsys, *asked) == " ".join(map(str, whole.ids)) + "\n"
    # The end token is not part of the text.
    eos = whole.ids[-1]
    shown = whole.ids[: whole.ids.index(eos)]
    assert said(capsys, *asked, "--eos", str(eos)) == " ".join(map(str, shown)) + "\n"


def test_a_target_that_begins_with_several_ids(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = zoo.load(saved / "pair")
    one, two = (zoo.generate(model, [3, 9, 4], max_new_tokens=5, start=s)[0] for s in (0, [0, 7]))
    assert abs(one.score - two.score) > 0.01
    asked = str(saved / "pair"), "3 9 4", "-n", "5", "--start", "0", "--start", "7"
    found = reported(capsys, *asked)
    assert found["ids"] == list(two.ids)
    assert found["score"] == pytest.approx(two.score, rel=1e-5)


def test_filling_masks(
    with_words: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = reported(capsys, with_words("mlm"), "I [MASK] a [MASK]")
    with torch.no_grad():
        model = zoo.load("mlm").eval()
        scores = model(torch.tensor([[8, 2, 6, 2]]))[0].softmax(-1)
    for row, place in zip(found["tokens"], (1, 3), strict=True):
        assert [token["id"] for token in row] == scores[place].topk(5).indices.tolist()
        assert row[0]["probability"] == pytest.approx(float(scores[place].max()), rel=1e-6)


@pytest.mark.parametrize("older", [None, "vocab.txt", "merges.txt", "spiece.model"])
def test_how_an_older_tokenizer_becomes_one_that_is_read(
    with_words: Callable[[str], str], older: str | None, refused: Refused
) -> None:
    folder = with_words("decoder")
    Path(folder, "tokenizer.json").unlink()
    Path(folder, older or "README.md").write_text("a")
    told = refused("run", folder, "ich")
    assert "holds no tokenizer.json" in told
    made = f"of `{older}`, transformers makes a tokenizer.json"
    assert (made in told) == (older in ("vocab.txt", "spiece.model"))


def test_the_name_of_a_special_token_is_told(with_words: Callable[[str], str]) -> None:
    """It may fill a masked place, where an empty name would tell nothing."""
    (found,) = zoo.TextModel.load(with_words("mlm")).run(["I [MASK] a"], top=len(WORDS))
    told = {token["id"]: token["text"] for token in found["tokens"][0]}
    assert [told[id_] for id_ in range(len(WORDS))] == WORDS
    assert "[" not in found["text"]


@pytest.mark.parametrize("name", ["[MASK]", "<mask>", "<|mask|>"])
def test_the_names_of_a_mask(with_words: Callable[[str], str], name: str) -> None:
    folder = with_words("mlm")
    path = Path(folder, "tokenizer.json")
    path.write_text(path.read_text().replace("[MASK]", name))
    (found,) = zoo.TextModel.load(folder).run([f"I {name} a"])
    assert len(found["tokens"]) == 1


@pytest.mark.parametrize("stated", [True, False, None])
@pytest.mark.parametrize("kind", ["WordLevel", "BPE"])
def test_spaces_before_punctuation(
    with_words: Callable[[str], str], kind: str, stated: bool | None
) -> None:
    """They are removed as by transformers, which keeps those of byte pairs."""
    folder = with_words("decoder")
    words = {word: number for number, word in enumerate(["it", "do", "n't", "'s", "?", "bad", "."])}
    merges = {"merges": []} if kind == "BPE" else {}
    made = getattr(tokenizers.models, kind)(vocab=words, unk_token="it", **merges)
    tokenizers.Tokenizer(made).save(f"{folder}/tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {} if stated is None else {"clean_up_tokenization_spaces": stated}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(settings))
    ids = [1, 2, 0, 3, 5, 4, 5, 6]
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    found = zoo.TextModel.load(folder).text.decode(ids)
    assert found == theirs.decode(ids)
    assert (found == "don't it's bad? bad.") == (kind == "WordLevel" and stated is True)


def test_embedding(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        ids = torch.tensor([[3, 4]])
        states = zoo.load(saved / "states").eval().encode(ids)
        vectors = {name: zoo.load(saved / name).eval()(ids) for name in ("pooled", "sentence")}
    for name, expected in {"states": states.mean(1), **vectors}.items():
        found = reported(capsys, str(saved / name), "3 4")["embedding"]
        assert found == pytest.approx(expected[0].tolist(), rel=1e-6)


def test_a_text_is_neither_filled_up_nor_cut_off(
    with_words: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Published tokenizers may be configured to do both."""
    name = with_words("sentence")
    expected = reported(capsys, name, "I want a beer")
    tokenizer = tokenizers.Tokenizer.from_file(f"{name}/tokenizer.json")
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    tokenizer.save(f"{name}/tokenizer.json")
    assert reported(capsys, name, "I want a beer") == expected


def test_classifying(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = torch.tensor([[3, 4]])
    with torch.no_grad():
        whole = zoo.load(saved / "classes").eval()(ids)[0].softmax(-1)
        each = zoo.load(saved / "tokens").eval()(ids)[0].softmax(-1)
    found = reported(capsys, str(saved / "classes"), "3 4")["classes"]
    assert [c["class"] for c in found] == whole.argsort(descending=True).tolist()
    assert [c["probability"] for c in found] == pytest.approx(
        whole.sort(descending=True)[0].tolist()
    )
    found = reported(capsys, str(saved / "tokens"), "3 4")["classes"]
    assert [row[0]["class"] for row in found] == each.argmax(-1).tolist()


def test_one_class_alone(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        score = zoo.load(saved / "ranks").eval()(torch.tensor([[3, 4]])).item()
    (found,) = reported(capsys, str(saved / "ranks"), "3 4")["classes"]
    assert found["probability"] == pytest.approx(1 / (1 + math.exp(-score)))
    assert found["probability"] != 1


def imported_scores(source: Path, config: str, folder: Path) -> list[float]:
    """Save a model as one that was imported with a config.json; return its scores for `3 4`."""
    model = zoo.load(source)
    model.origin = {"config": config}
    zoo.save(model, folder)
    with torch.no_grad():
        found: list[float] = model.eval()(torch.tensor([[3, 4]]))[0].tolist()
    return found


def test_a_text_that_may_be_of_several_classes(
    saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = '{"problem_type": "multi_label_classification"}'
    scores = imported_scores(saved / "classes", config, tmp_path / "several")
    for one in reported(capsys, str(tmp_path / "several"), "3 4")["classes"]:
        expected = 1 / (1 + math.exp(-scores[one["class"]]))
        assert one["probability"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, math.nan) for name in ("mlm", "states", "pooled", "sentence", "classes")),
        *((name, math.inf) for name in ("mlm", "states", "tokens")),
    ],
)
def test_weights_that_are_no_numbers(
    project: Path, refused: Refused, name: str, value: float
) -> None:
    model = zoo.build({**SIZES, **MODELS[name], "name": "m"})
    with torch.no_grad():
        model.encoder.norm.weight[0] = value
    zoo.save(model, project / "m")
    options = ["--mask-id", "2"] if name == "mlm" else []
    assert "m: the outputs are not numbers (NaN)" in refused("run", "m", "3 2 4", *options)


@pytest.mark.parametrize("names", ["", ', "id2label": null', ', "id2label": {"0": 1.5}'])
def test_values_of_a_regression(
    saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, names: str
) -> None:
    config = f'{{"problem_type": "regression"{names}}}'
    (score,) = imported_scores(saved / "ranks", config, tmp_path / "rated")
    (found,) = reported(capsys, str(tmp_path / "rated"), "3 4")["classes"]
    assert found == {"class": 0, "value": pytest.approx(score, rel=1e-5)}
    assert said(capsys, str(tmp_path / "rated"), "3 4") == f"0 {score:.6g}\n"


@pytest.mark.parametrize(
    ("head", "task"),
    [
        ({"kind": "classifier", "n_classes": 3, "pooling": "last"}, "classify"),
        ({"kind": "token_classifier", "n_classes": 3}, "classify"),
        ({"kind": "sentence", "pooling": "last"}, "embed"),
    ],
)
def test_a_decoder_that_does_not_generate(
    head: dict[str, Any], task: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Such as Llama for sequence classification."""
    sizes = {"vocab": 9, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    spec = {"format": 1, "name": "m", "builder": "decoder", **sizes, "head": head}
    model = zoo.build(spec).eval()
    zoo.save(model, tmp_path / "m")
    with torch.no_grad():
        output = model(torch.tensor([[3, 4]]))[0]
    found = reported(capsys, str(tmp_path / "m"), "3 4")
    assert found["task"] == task
    if task == "embed":
        assert found["embedding"] == pytest.approx(output.tolist(), rel=1e-5)
    else:
        last = found["classes"][-1] if head["kind"] == "token_classifier" else found["classes"]
        best = output.view(-1, 3)[-1].softmax(-1).max().item()
        assert last[0]["probability"] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            '{"id2label": {"0": "neg", "1": "neutral", "2": "po\\u001bs"}}',
            ["neg", "neutral", "po�s"],
        ),
        ('{"id2label": {"1": "some"}}', ["0", "some", "2"]),
        ('{"id2label": [1]}', ["0", "1", "2"]),
        ("[" * 100_000, ["0", "1", "2"]),
    ],
)
def test_classes_have_the_names_that_their_checkpoint_gave_them(
    saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, config: str, told: list[str]
) -> None:
    model = zoo.load(saved / "classes")
    model.origin = {"family": "bert", "config": config}
    zoo.save(model, tmp_path / "named")
    best = [c["class"] for c in reported(capsys, str(tmp_path / "named"), "3 4")["classes"]]
    shown = said(capsys, str(tmp_path / "named"), "3 4").split("  ")
    assert [one.split()[0] for one in shown] == [told[n] for n in best]


def test_mistakes(saved: Path, refused: Refused, with_words: Callable[[str], str]) -> None:
    decoder, pair, mlm = (str(saved / name) for name in ("decoder", "pair", "mlm"))
    assert "holds no tokenizer.json" in refused("run", decoder, "some text")
    assert "id 10 is outside" in refused("run", decoder, "10")
    assert "the text is empty" in refused("run", decoder, "")
    drawing = ("--temperature", "--top-k", "--top-p", "--min-p", "--seed")
    generating = [(option, "1") for option in (*drawing, "--beams", "-n", "--eos", "--start")]
    for option in (*generating, ("--sample",), ("--repetition-penalty", "2")):
        assert "mlm generates no text" in refused("run", mlm, "3 4", *option)
    assert "`--start` is for models with an encoder" in refused("run", decoder, "3", "--start", "1")
    assert "decoder fills no masked tokens" in refused("run", decoder, "3", "--mask-id", "1")
    assert "state the ids that each target begins with" in refused("run", pair, "3")
    assert "no masked token" in refused("run", mlm, "3 4")
    for texts in (("3 2", "3 4"), ("3 4", "3 2")):
        assert "no masked token" in refused("run", mlm, *texts, "--mask-id", "2")
    assert "--top-k goes with --sample" in refused("run", decoder, "3", "--top-k", "3")
    assert "--seed goes with --sample" in refused("run", decoder, "3", "--seed", "0")
    told = refused("run", decoder, "3", "--sample", "--seed", "-1")
    assert "`--seed` must be at least 0, not the integer `-1`" in told
    assert "take one" in refused("run", decoder, "3", "--sample", "--beams", "2")
    told = refused("run", decoder, "3", "--sample", "--top-p", "2")
    assert "`--top-p` must be at most 1" in told
    assert "registered with a spec and without weights" in refused("run", "vaswani-base", "3")
    Path("own.toml").write_text("format = 1\n")
    assert "help: `zoo build own.toml -o DIR`" in refused("run", "own.toml", "3")
    assert "help: `zoo list models` lists" in refused("run", "nothing-is-like-this", "3")
    folder = Path(with_words("decoder"))
    (folder / "generation_config.json").write_text('{"eos_token_id": "end"}')
    assert "generation_config.json: error: the settings of generation" in refused(
        "run", str(folder), "ich"
    )
    (folder / "generation_config.json").write_text("[" * 100_000)
    assert "generation_config.json: error: the settings of generation" in refused(
        "run", str(folder), "ich"
    )
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json: error: this is not a tokenizer" in refused("run", str(folder), "ich")


NOTHING: dict[str, Any] = {"type": "TemplateProcessing", "single": [], "special_tokens": {}}
PANICS: dict[str, tuple[dict[str, Any], Callable[[Text], Any], type[ZooError], str]] = {
    "reading": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        lambda text: text.encode("ich"),
        WeightsError,
        "tokenizer.json: error: this is not a tokenizer: ",
    ),
    "encoding": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}},
        lambda text: text.encode("a" * 40 + "b"),
        InputError,
        "the tokenizer cannot encode the text: Onig: Regex search error: retry-limit-in-match over",
    ),
    "joining": (
        {"post_processor": NOTHING | {"pair": [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]}},
        lambda text: text.encode_pair(("ich", "bier"), 2),
        InputError,
        "the tokenizer cannot encode the text: ",
    ),
    "decoding": (
        {"decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 1}},
        lambda text: text.decode([WORDS.index("a")]),
        WeightsError,
        "decoder: error: its tokenizer cannot make a text of ids: ",
    ),
}


@pytest.mark.parametrize("name", PANICS)
def test_a_tokenizer_that_panics(with_words: Callable[[str], str], name: str) -> None:
    """What the package raises then is no `Exception`, and would end a service."""
    changes, use, kind, told = PANICS[name]
    folder = Path(with_words("decoder"))
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(kind, match=re.escape(told)):
        use(read_text(folder))


@pytest.mark.parametrize("kind", ["directory", "link"])
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_target.json", "generation_config.json"]
)
def test_a_file_that_cannot_be_read_is_not_taken_for_missing(
    with_words: Callable[[str], str], refused: Refused, name: str, kind: str
) -> None:
    path = Path(with_words("decoder"), name)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    told = refused("run", "decoder", "3")
    assert name in told
    assert "cannot be read: " in told


def test_special_ids_of_the_config_that_was_imported(
    with_words: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Only if the folder has no file of them."""
    folder = Path(with_words("pair"))
    model = zoo.load(folder)
    text = model_text(capsys, folder)
    last = text["ids"][0]
    ids = {"eos_token_id": last, "decoder_start_token_id": 0, "model_type": "other"}
    model.origin = {"config": json.dumps(ids)}
    zoo.save(model, folder)
    assert model_text(capsys, folder) == text
    (folder / "generation_config.json").unlink()
    found = model_text(capsys, folder)
    assert (found["ids"], found["ended"]) == ([last], "eos")


def model_text(capsys: pytest.CaptureFixture[str], folder: Path) -> Any:
    return reported(capsys, str(folder), "ich ein bier", "-n", "3")


LINES = ["ich", "ein bier", "I want a beer", "bier ein", "ich [MASK] want"]


@pytest.mark.parametrize("name", MODELS)
def test_several_texts(
    name: str, with_words: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The result of each is the same as alone, in their order."""
    folder = with_words(name)
    texts = [line for line in LINES if name != "mlm" or "[MASK]" in line] * 20
    found = [json.loads(line) for line in said(capsys, folder, *texts, "--json").splitlines()]
    assert len(found) == len(texts)
    for text, one in zip(texts[:5], found[:5], strict=False):
        alone = reported(capsys, folder, text)
        assert one.keys() == alone.keys()
        if "embedding" in one:
            assert one["embedding"] == pytest.approx(alone["embedding"], rel=1e-4, abs=1e-6)
        elif "ids" in one:
            assert (one["text"], one["ids"]) == (alone["text"], alone["ids"])
        else:
            assert str(one)[:40] == str(alone)[:40]


def test_lines_of_the_standard_input(
    with_words: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zoo.cli.standard_input.AT_ONCE", 2)
    folder = with_words("pair")
    alone = [said(capsys, folder, line, "-n", "5") for line in LINES]

    def given(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    given("\r\n".join(LINES).encode())
    assert said(capsys, folder, "-n", "5") == "".join(alone)
    given(b"")
    assert said(capsys, folder) == ""
    for lines in (LINES[:1], LINES[:2], LINES[:3]):  # within a portion, and after one
        given("\n".join(lines).encode() + b"\n\xff\n")
        assert run(["run", folder, "-n", "5"]) == 2
        told = capsys.readouterr()
        line = len(lines) + 1
        assert f"standard input:{line}: error: this line is not UTF-8" in told.err
        assert told.out == "".join(alone[: len(lines)])
    folder = with_words("decoder")
    given(b"ich\nein\nbier\n\n")
    assert run(["run", folder, "-n", "5"]) == 2
    assert "standard input:4: error: the text is empty" in capsys.readouterr().err


class Waiting(io.RawIOBase):
    """The lines of a program that sends one only when it has read the answer to the last one."""

    def __init__(self, lines: Sequence[bytes], answers: int) -> None:
        self.left, self.answers, self.read_back = list(lines), answers, list[str]()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if len(self.left) < len(LINES):
            self.read_back.append(os.read(self.answers, 1 << 16).decode())
        line = self.left.pop(0) if self.left else b""
        buffer[: len(line)] = line
        return len(line)


def test_another_program_waits_for_each_answer(
    with_words: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = with_words("pair")
    alone = [said(capsys, folder, line, "-n", "5") for line in LINES]
    answers, output = os.pipe()
    os.set_blocking(answers, False)
    program = Waiting([f"{line}\n".encode() for line in LINES], answers)
    with os.fdopen(output, "w") as stdout, os.fdopen(answers), monkeypatch.context() as here:
        here.setattr(sys, "stdout", stdout)
        here.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(program)))
        assert run(["run", folder, "-n", "5", "--line-buffered"]) == 0
    assert program.read_back == alone
    told = refused("run", folder, "ich", "--line-buffered")
    assert "--line-buffered goes with lines of the standard input" in told


def test_a_blank_line_is_translated_to_one(
    with_words: Callable[[str], str],
    saved: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one output line for each input line, and no translation is invented."""
    folder = with_words("pair")
    given = io.TextIOWrapper(io.BytesIO(b"ich\n\n \t\nein bier\n"))
    monkeypatch.setattr(sys, "stdin", given)
    alone = [said(capsys, folder, text, "-n", "5") for text in ("ich", "ein bier")]
    assert said(capsys, folder, "-n", "5") == f"{alone[0]}\n\n{alone[1]}"
    told = {"task": "translate", "text": "", "ids": [], "score": 0.0, "ended": "eos"}
    assert reported(capsys, folder, "") == told
    assert reported(capsys, str(saved / "pair"), " ", "--start", "0") == told
    assert list(zoo.TextModel.load(folder).stream(" ")) == []


@pytest.mark.parametrize(
    ("name", "lines", "options", "told"),
    [
        ("decoder", "3\n\n", (), "2: error: the text is empty"),
        ("decoder", "3\n3 10\n", (), "2: error: text: id 10 is outside"),
        ("decoder", "3\nx\n", (), "2: error: the model's folder holds no tokenizer.json"),
        ("pair", "3\n\n3 99\n", ("--start", "0"), "3: error: text: id 99 is outside"),
        ("mlm", "3 2\n3 4\n", ("--mask-id", "2"), "2: error: the text holds no masked token"),
        ("classes", "3\n3\n99\n", (), "3: error: text: id 99 is outside"),
    ],
)
def test_a_line_that_does_not_fit_is_told_with_its_number(
    saved: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    lines: str,
    options: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert f"standard input:{told}" in refused("run", str(saved / name), *options)
    text = told[1:]
    texts = lines.removesuffix("\n").split("\n")
    assert f"text {told[0]}{text}" in refused("run", str(saved / name), *texts, *options)


def test_a_text_and_its_continuation_must_fit(ten_positions: str) -> None:
    with pytest.raises(InputError, match="text 2: error: text: 7 tokens and 5 new ones are longer"):
        zoo.TextModel.load(ten_positions).run(["3", "3 " * 7], max_new_tokens=5)


def test_what_does_not_generate_is_not_streamed(with_words: Callable[[str], str]) -> None:
    """The error is raised by the call, as by `zoo.stream`, and not by its first piece."""
    with pytest.raises(InputError, match="does not generate"):
        zoo.TextModel.load(with_words("mlm")).stream("ich")
    model = zoo.TextModel.load(with_words("pair"))
    for text in ("ich", " "):
        with pytest.raises(InputError, match="`max_new_tokens` is an integer of at least 1"):
            model.stream(text, max_new_tokens=0)


def test_texts_in_python(with_words: Callable[[str], str]) -> None:
    model = zoo.TextModel.load(with_words("pair"))
    assert model.task == "translate"
    (one,) = model.run(["ich ein bier"], max_new_tokens=6)
    assert "".join(model.stream("ich ein bier", max_new_tokens=6)) == one["text"]
    assert model.run([]) == []
    first, second = model.run(["", " "])
    first["ids"].append(3)
    assert second["ids"] == []
    with pytest.raises(zoo.InputError, match="texts are a list"):
        model.run("ich")


@pytest.mark.parametrize("name", ["pair", "decoder"])
def test_a_terminal_sees_tokens_as_they_come(
    with_words: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Each write is a part of the text that a pipe gets at once; a beam search writes all at
    once."""
    model = with_words(name)
    Path(model, "generation_config.json").write_text('{"decoder_start_token_id": 0}')  # no end
    asked = (model, "ich ein bier", "-n", "30", "--sample", "--seed", "1")
    whole = said(capsys, *asked)
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda part: written.append(part) or write(part))
    assert said(capsys, *asked) == whole
    assert len([part for part in written if part.strip()]) > 3
    assert "".join(written) == whole
    written.clear()
    said(capsys, model, "ich ein bier", "-n", "6", "--beams", "2")
    assert len(written) == 1


@pytest.mark.parametrize(
    "options", [("--sample",), ("--beams", "2"), ("--sample", "--answers", "2")]
)
def test_what_a_model_writes_commands_no_terminal(
    saved: Path,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    """A pipe gets the text as it is, and a terminal no control characters."""
    shutil.copytree(saved / "decoder", project / "evil")
    joined = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"
    words = ["\x1b[2J", "\x9b2J", "\x08", "\x00", "\x7f", "\r\n", "a", "\t", joined, "\x1b]0;P\x07"]
    model = tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save("evil/tokenizer.json")
    asked = ("evil", "a", "-n", "99", "--repetition-penalty", "9", *options)
    raw = said(capsys, *asked)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    kept = raw.replace("\r", "")
    controls = {c for c in kept if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    assert controls
    assert said(capsys, *asked) == "".join("\ufffd" if c in controls else c for c in kept)
    assert json.loads(said(capsys, *asked, "--json"))["text"] in raw


def test_a_text_that_is_longer_than_the_model_reads() -> None:
    spec = {**SIZES, **MODELS["mlm"], "name": "short", "position": "learned", "max_length": 3}
    model = zoo.TextModel(zoo.build(spec), Numbers(), Settings())
    assert len(model.run(["3 2 4"], mask_id=2)) == 1
    with pytest.raises(zoo.ZooError, match="text: 4 tokens are longer than") as told:
        model.run(["3 2 4", "3 2 4 5"], mask_id=2)
    assert "nothing is cut unasked: shorten it" in str(told.value)


PATCHES = {"kind": "patches", "image_size": 4, "patch_size": 2}
IN_PYTHON = "in Python, `zoo.load` returns the model, "
FOR_IMAGES = "`zoo run` takes images in place of texts, and in Python `zoo.ImageModel` does"
OTHER_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "memory": (
        {"builder": "decoder", "vocab": VOCAB, "memory_width": 8},
        f"{IN_PYTHON}and `zoo.generate` takes it with its own inputs",
    ),
    "vectors": (
        {
            "builder": "encoder_decoder",
            "encoder": {"embedding": "vectors"},
            "target_vocab": VOCAB,
        },
        f"{IN_PYTHON}and `zoo.generate` takes it with its own inputs",
    ),
    "captions": (
        {
            "builder": "encoder_decoder",
            "encoder": {"embedding": PATCHES},
            "target_vocab": VOCAB,
        },
        FOR_IMAGES,
    ),
    "images": (
        {
            "builder": "encoder",
            "embedding": PATCHES,
            "head": {"kind": "classifier", "n_classes": 3},
        },
        FOR_IMAGES,
    ),
}


@pytest.mark.parametrize("text", ["3 4", ""], ids=["ids", "blank"])
@pytest.mark.parametrize(("spec", "help"), OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_a_model_that_is_not_called_with_ids_alone(
    spec: dict[str, Any], help: str, text: str
) -> None:
    """It may have a task, but not for text, which cannot state its other inputs."""
    model = zoo.TextModel(zoo.build({**SIZES, **spec, "name": "m"}), Numbers(), Settings())
    with pytest.raises(InputError) as error:
        model.run([text], start=0)
    (problem,) = error.value.problems
    assert problem.message == "text becomes ids, and m is not called with ids alone"
    assert problem.help == help


def test_a_model_whose_head_has_no_task() -> None:
    """A decoder without a head makes states, and no vector of a text."""
    spec = {**SIZES, "builder": "decoder", "vocab": 9, "head": "none", "name": "m"}
    model = zoo.TextModel(zoo.build(spec), Numbers(), Settings())
    with pytest.raises(InputError, match="`zoo run` has no task for m: its head says none"):
        model.run(["3 4"])


def test_a_token_that_is_half_a_character_waits_for_the_other(saved: Path) -> None:
    """A tokenizer of bytes: two ids make one letter, and the last letter is never completed."""

    class Bytes(Numbers):
        def decode(self, ids: Sequence[int]) -> str:
            return bytes(0xC3 if n % 2 == 0 else 0xA4 for n in range(len(ids))).decode(
                "utf-8", "replace"
            )

    model = zoo.TextModel(zoo.load(saved / "decoder"), Bytes(), Settings())
    assert list(model.stream("3 4", max_new_tokens=5)) == ["ä", "ä", "\N{REPLACEMENT CHARACTER}"]
