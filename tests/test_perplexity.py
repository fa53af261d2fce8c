"""The perplexity of a text: every token is predicted once, from the context that the definition
states; against transformers and against separate predictions."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_values import add_noise
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from toy_training import MODEL, PAIRS, RECIPE, write_toy
from transformers import GPT2Config, GPT2LMHeadModel
from trials import Refused, on_terminal, other_defaults

import zoo
from zoo.cli import run
from zoo.errors import InputError
from zoo.running.perplexity import perplexity, windows
from zoo.training.scores import score

TEXT = "".join(f"{a}: {b}.\n" for a, b in PAIRS[:12]) + "größer, ünïcödé \N{SNOWMAN}\n"
INDENTED = f"{TEXT}    ein\n    ein\n"
VOCAB = 290
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer(template: str | None = None) -> Tokenizer:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=ALPHABET,
        show_progress=False,
    )
    found.train_from_iterator([TEXT], trainer)
    if template is not None:
        specials = [("<s>", 0), ("</s>", 1)]
        found.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=specials
        )
    return found


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return a model of transformers in float64, and its folder after `zoo import`."""
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=VOCAB, n_positions=24, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(0)
    theirs = add_noise(GPT2LMHeadModel(config).eval())
    theirs.save_pretrained(folder / "published")
    tokenizer().save(str(folder / "published" / "tokenizer.json"))
    assert run(["import", str(folder / "published"), "-o", str(folder / "gpt2")]) == 0
    return theirs.double(), folder / "gpt2"


@torch.no_grad()
@pytest.mark.parametrize(
    ("window", "stride"), [(24, 12), (24, 24), (24, 7), (5, 1), (1, 1), (None, None)]
)
def test_each_token_is_predicted_once_from_its_window(
    gpt2: tuple[Any, Path], tmp_path: Path, window: int | None, stride: int | None
) -> None:
    theirs, folder = gpt2
    ids = tokenizer().encode(TEXT).ids
    size, step = window or 24, stride or 12
    nats = 0.0
    for place in range(1, len(ids)):
        start = max(0, math.ceil((place - size) / step)) * step
        logits = theirs(torch.tensor([ids[start:place]])).logits[0, -1]
        nats -= float(logits.log_softmax(-1)[ids[place]])
    model = zoo.TextModel.load(folder, dtype=torch.float64)
    found = perplexity(model, TEXT, window=window, stride=stride)
    n_bytes = len(TEXT.encode()) - len(tokenizer().decode(ids[:1]))
    assert (found["tokens"], found["bytes"]) == (len(ids) - 1, n_bytes)
    assert (found["window"], found["stride"]) == (size, step)
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-10)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-10)
    (tmp_path / "a.txt").write_text(TEXT, "utf-8")
    options: dict[str, Any] = {"window": window, "stride": stride}
    again = zoo.score(folder, data=tmp_path / "a.txt", **options)
    assert again == pytest.approx(found, rel=1e-5)
    same = zoo.score(folder, data=tmp_path / "a.txt", dtype=torch.float64, **options)
    assert same == pytest.approx(found, rel=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    ("template", "begin"),
    [("<s> $A", [0]), ("<s> $A </s>", [0]), ("$A </s>", []), ("<s> </s> $A", [0, 1])],
)
def test_a_begin_is_read_and_an_end_is_left_out(
    project: Path, capsys: pytest.CaptureFixture[str], template: str, begin: list[int]
) -> None:
    spec = (
        f'format = 1\nname = "m"\nbuilder = "decoder"\nvocab = {VOCAB}\nn_layers = 1\n'
        'd_model = 8\nn_heads = 2\nd_ff = 8\nposition = "rotary"\n'
    )
    zoo.save(zoo.build(spec), project / "m")
    tokenizer(template).save(str(project / "m" / "tokenizer.json"))
    (project / "a.txt").write_text(TEXT, "utf-8")
    assert run(["score", "m", "--data", "a.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = tokenizer().encode(TEXT).ids
    n_read = max(len(begin), 1)
    ids = torch.tensor([*begin, *own])
    scores = zoo.load("m").double()(ids[None, :-1])[0].log_softmax(-1)
    nats = -scores.gather(-1, ids[1:, None])[n_read - 1 :].sum().item()
    assert found["tokens"] == len(ids) - n_read
    if begin:
        assert found["bytes"] == len(TEXT.encode())
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - n_read)), rel=1e-5)
    assert run(["score", "m", "--data", "a.txt", "--device", "meta"]) == 2
    assert "m is on the device `meta`, where it has no values" in capsys.readouterr().err
    assert run(["score", "m", "--data", "a.txt"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        f"perplexity: {found['perplexity']:.4g} on {len(ids) - n_read:,} tokens, "
    )
    assert told.endswith("(window 1,024, stride 512)\n")


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_windows_predict_each_token_once(length: int, window: int, data: Any) -> None:
    stride = data.draw(st.integers(1, window))
    begin = data.draw(st.integers(1, length - 1))
    predicted: list[int] = []
    for one in windows(length, begin, window, stride):
        assert 0 <= one.begin < one.end < length
        assert one.end - one.begin <= window
        for place in range(one.end + 1 - one.n_scored, one.end + 1):
            predicted.append(place)
            assert one.begin == 0 or place - one.begin >= window - stride + 1
            assert place > one.begin
    assert predicted == list(range(begin, length))


LINES = """\
format = 1
name = "toy"
builder = "decoder"
vocab = 290
n_layers = 1
d_model = 16
n_heads = 2
d_ff = 32
position = "rotary"
"""


@pytest.fixture(scope="module")
def of_lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return the report of training a language model, and the paths of the model and its data."""
    folder = tmp_path_factory.mktemp("lines")
    recipe = RECIPE.replace('kind = "tsv"', 'kind = "text"').replace("toy.tsv", "toy.txt")
    recipe = recipe.replace("valid = 4", 'test = "test.txt"').replace("steps = 12", "steps = 4")
    path = write_toy(folder, recipe, LINES)
    (folder / "toy.txt").write_text("".join(f"{a}\n" for a, _ in PAIRS), "utf-8")
    (folder / "test.txt").write_text(INDENTED, "utf-8")
    report = zoo.train(path, output=folder / "out")
    assert report is not None
    return report, folder


@torch.no_grad()
def test_a_model_of_lines_is_measured_on_lines(of_lines: tuple[dict[str, Any], Path]) -> None:
    report, folder = of_lines
    model = zoo.load(folder / "out").double()
    made = Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))
    end = made.token_to_id("</s>")
    nats, n_tokens = 0.0, 0
    for line in INDENTED.splitlines():
        ids = torch.tensor([*made.encode(line).ids, end])
        scores = model(ids[None, :-1])[0].log_softmax(-1)
        nats -= scores.gather(-1, ids[1:, None]).sum().item()
        n_tokens += len(ids) - 1
    found = zoo.score(folder / "out", data=folder)
    with other_defaults():
        assert zoo.score(folder / "out", data=folder) == found
    assert (found["tokens"], found["bytes"]) == (n_tokens, len(INDENTED.encode()))
    assert found["perplexity"] == pytest.approx(math.exp(nats / n_tokens), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / len(INDENTED.encode()), rel=1e-5
    )
    assert {key: report[key] for key in found} == found
    assert math.exp(report["test_loss"]) == pytest.approx(found["perplexity"], rel=1e-5)
    assert zoo.score(folder / "out", data=folder / "test.txt") == found
    with pytest.raises(InputError, match="this recipe's data are lines"):
        zoo.score(folder / "out", data=folder / "test.txt", window=8)


HEAD = (
    f'format = 1\nname = "m"\nvocab = {VOCAB}\nn_layers = 1\nd_model = 8\nn_heads = 2\nd_ff = 8\n'
)
REFUSALS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "an encoder": (
        f'{HEAD}builder = "encoder"\nhead = "mlm"\n',
        (),
        "m predicts no next token: perplexity is of decoders",
    ),
    "a translator": (MODEL, (), "toy predicts a target, given a source"),
    "a decoder of a memory": (
        f'{HEAD}builder = "decoder"\nmemory_width = 8\n',
        (),
        "given a source",
    ),
    "one that sees all": (
        f'{HEAD}builder = "decoder"\n[decoder]\ncausal = false\n',
        (),
        "m sees the tokens that it has to predict: `causal = false`",
    ),
    "too large a window": (
        f'{HEAD}builder = "decoder"\nposition = {{ kind = "learned", max_length = 9 }}\n',
        ("--window", "10"),
        "a window of 10 does not fit m: it is at least 1 and at most 9, its positions",
    ),
    "a stride over the window": (
        f'{HEAD}builder = "decoder"\n',
        ("--window", "8", "--stride", "9"),
        "a stride of 9 is not from 1 to the window's 8",
    ),
    "a small vocabulary": (
        f'{HEAD.replace(str(VOCAB), "40")}builder = "decoder"\n',
        (),
        "outside the vocabulary",
    ),
}


@pytest.mark.parametrize(("spec", "options", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_predicts_no_text_is_refused(
    project: Path, refused: Refused, spec: str, options: tuple[str, ...], told: str
) -> None:
    zoo.save(zoo.build(spec), project / "m")
    tokenizer().save(str(project / "m" / "tokenizer.json"))
    (project / "a.txt").write_text(TEXT, "utf-8")
    assert told in refused("score", "m", "--data", "a.txt", *options)


def test_weights_that_are_no_numbers(project: Path, refused: Refused) -> None:
    model = zoo.build(f'{HEAD}builder = "decoder"\n')
    with torch.no_grad():
        model.decoder.norm.weight[0] = math.nan
    zoo.save(model, project / "m")
    tokenizer().save(str(project / "m" / "tokenizer.json"))
    (project / "a.txt").write_text(TEXT, "utf-8")
    told = refused("score", "m", "--data", "a.txt")
    assert "m: the scores of the next token are not numbers (NaN)" in told


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("ab", 1), ("a\N{SNOWMAN}", 3), ("\N{SNOWMAN}", 3), ("\N{SNOWMAN}a", 4)]
)
def test_a_character_that_the_first_token_begins_is_predicted(
    tmp_path: Path, text: str, n_bytes: int
) -> None:
    zoo.save(zoo.build(f'{HEAD}builder = "decoder"\n'), tmp_path / "m")
    bytewise = Tokenizer(models.BPE({one: n for n, one in enumerate(ALPHABET)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.save(str(tmp_path / "m" / "tokenizer.json"))
    found = perplexity(zoo.TextModel.load(tmp_path / "m"), text)
    assert (found["tokens"], found["bytes"]) == (len(text.encode()) - 1, n_bytes)


def test_texts_that_cannot_be_measured_on_are_refused(project: Path, refused: Refused) -> None:
    zoo.save(zoo.build(f'{HEAD}builder = "decoder"\n'), project / "m")
    (project / "a.txt").write_text(TEXT, "utf-8")
    assert "m has no tokenizer" in refused("score", "m", "--data", "a.txt")
    tokenizer().save(str(project / "m" / "tokenizer.json"))
    (project / "one.txt").write_text("e")
    assert "the text is too short" in refused("score", "m", "--data", "one.txt")
    (project / "bad.txt").write_bytes(b"a\nna\xefve\n")
    assert "bad.txt:2:3: error: not UTF-8" in refused("score", "m", "--data", "bad.txt")
    assert (
        refused("score", "m", "--data", "none.txt") == "none.txt: error: no such file or folder\n"
    )
    assert "a file of text: `--data FILE`" in refused("score", "m")
    assert "no weights file and no model `nowhere`" in refused("score", "nowhere")


def test_a_text_comes_through_a_pipe(project: Path) -> None:
    """As of `zoo score m --data <(command)`."""
    zoo.save(zoo.build(f'{HEAD}builder = "decoder"\n'), project / "m")
    tokenizer().save(str(project / "m" / "tokenizer.json"))
    (project / "a.txt").write_text(TEXT, "utf-8")
    reading, writing = os.pipe()
    try:
        os.write(writing, TEXT.encode())
        os.close(writing)
        found = zoo.score("m", data=f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    expected = zoo.score("m", data="a.txt")
    assert found["perplexity"] == expected["perplexity"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"window": "8"}, "`window` is a number of tokens, not '8'"),
        ({"window": 8.0}, "`window` is a number of tokens, not 8.0"),
        ({"window": 8, "stride": 0.5}, "`stride` is a number of tokens, not 0.5"),
        ({"data": ["a text"]}, "`data` is the name of a file, not .'a text'."),
    ],
)
def test_what_is_no_window_and_no_file(project: Path, options: dict[str, Any], told: str) -> None:
    zoo.save(zoo.build(f'{HEAD}builder = "decoder"\n'), project / "m")
    tokenizer().save(str(project / "m" / "tokenizer.json"))
    (project / "a.txt").write_text(TEXT, "utf-8")
    with pytest.raises(InputError, match=told):
        zoo.score("m", **{"data": "a.txt"} | options)


def test_a_translator_is_measured_on_pairs(project: Path, refused: Refused) -> None:
    zoo.train(write_toy(project, RECIPE.replace("steps = 12", "steps = 1")), output="out")
    assert "this is not a folder" in refused("score", "out", "--data", "toy.tsv")
    told = refused("score", "out", "--data", "toy.tsv", "--window", "8")
    assert told == "error: a window is of a text as a whole, and this recipe's data are pairs\n"
    assert refused("score", "out", "--data", "none") == "none: error: no such file or folder\n"
    assert "recipe.toml:5:2: error: the recipe has no test data" in refused(
        "score", "out", "--data", "."
    )


def test_how_far_the_measuring_is_is_shown(
    gpt2: tuple[Any, Path], of_lines: tuple[dict[str, Any], Path], project: Path
) -> None:
    Path("long.txt").write_text(TEXT, "utf-8")
    recipe = RECIPE.replace("valid = 4", "test = 40").replace("steps = 12", "steps = 1")
    recipe += "[evaluation]\nbatch_tokens = 100\n"
    zoo.train(write_toy(project, recipe), output="pairs")
    measured = {
        "windows": (gpt2[1], {"data": "long.txt"}),
        "lines": (of_lines[1] / "out", {"data": of_lines[1]}),
        "pairs": (Path("pairs"), {"data": project}),
    }
    totals = {}
    for what, (model, options) in measured.items():
        told: list[tuple[int, int]] = []
        score(model, **options, on_progress=lambda *how_far, told=told: told.append(how_far))
        done, (total, *others) = [n for n, _ in told], {n for _, n in told}
        assert done == sorted(set(done))
        assert (done[-1], others) == (total, [])
        totals[what] = total, len(told) > 1
    # The first window has 24 tokens, and each later one predicts 12 more.
    tokens = score(gpt2[1], data="long.txt")["tokens"]
    assert totals["windows"] == (1 + math.ceil((tokens - 24) / 12), True)
    assert totals["lines"][0] == len(INDENTED.splitlines())
    assert totals["pairs"] == (40, True)
    out, on_screen = on_terminal("score", str(gpt2[1]), "--data", "long.txt")
    assert out.startswith("perplexity: ")
    assert b"100%" in on_screen
