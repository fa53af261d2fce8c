"""`zoo run` and `zoo.TextModel` with guessed tokens: the text is the same."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from random_values import add_noise
from trials import Refused, said
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run

WORDS = ["[PAD]", "[EOS]", "ich", "ein", "bier", "a", "beer", "I", "want"]
SIZES = {"format": 1, "n_layers": 1, "n_heads": 2, "d_ff": 8}
DECODER = {"builder": "decoder", "vocab": len(WORDS)}
PAIR = {"builder": "encoder_decoder", "source_vocab": len(WORDS), "target_vocab": len(WORDS)}


def save(folder: Path, values: dict[str, object], words: list[str] | None = WORDS) -> None:
    """Save a model whose tensors all matter, with a tokenizer of words."""
    zoo.save(add_noise(zoo.build({**SIZES, **values, "name": folder.name}), 0.5), folder)
    if words is not None:
        word_tokenizer(words, words[0]).save(str(folder / "tokenizer.json"))


@pytest.fixture
def models(project: Path) -> Path:
    save(project / "large", {**DECODER, "d_model": 16})
    save(project / "small", {**DECODER, "d_model": 8})
    save(project / "padded", {**DECODER, "d_model": 8, "vocab": 12}, [*WORDS, "the", "last"])
    save(
        project / "other", {**DECODER, "d_model": 8}, [*WORDS[:4], "beer", "a", "bier", *WORDS[7:]]
    )
    save(project / "plain", {**DECODER, "d_model": 8}, None)
    save(project / "pair", {**PAIR, "d_model": 16})
    save(project / "small-pair", {**PAIR, "d_model": 8})
    save(project / "vectors", {"builder": "encoder", "vocab": 9, "head": "pooler", "d_model": 8})
    return project


@pytest.mark.parametrize("draft", [["--draft", "small"], ["--draft", "padded"], ["--lookup"]])
def test_the_same_text(models: Path, capsys: pytest.CaptureFixture[str], draft: list[str]) -> None:
    for options in ([], ["--weights", "int8"], ["--beams", "1"]):
        asked = ["large", "ich want a", "-n", "20", *options]
        assert said(capsys, *asked, *draft) == said(capsys, *asked)
    assert said(capsys, "pair", "ich ein bier", "--start", "0", "--draft", "small-pair") == said(
        capsys, "pair", "ich ein bier", "--start", "0"
    )


def test_lines(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for draft in ([], ["--draft", "small"], ["--lookup"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ich\na beer I\n")))
        found.append(said(capsys, "large", "-n", "9", *draft))
    assert found[0].count("\n") == 2
    assert found == found[:1] * 3


def test_in_python(models: Path) -> None:
    large, small = zoo.TextModel.load("large"), zoo.TextModel.load("small")
    expected = large.run(["ich want a"], max_new_tokens=20)
    draft = large.draft(small, n_tokens=3)
    assert (draft.model, draft.n_tokens) == (small.transformer, 3)
    found = large.run(["ich want a"], max_new_tokens=20, draft=draft)
    assert found[0]["ids"] == expected[0]["ids"]
    pieces = large.stream("ich want a", max_new_tokens=20, draft=zoo.Lookup())
    assert "".join(pieces) == expected[0]["text"]


def test_what_does_not_fit(models: Path, refused: Refused) -> None:
    def told(*arguments: str) -> str:
        return refused("run", *arguments)

    other = told("large", "ich", "--draft", "other")
    assert "other cannot guess the tokens of large: the id 4 is `beer` in its" in other
    assert "tokenizer, not `bier`" in other
    assert "only one of them has a tokenizer" in told("large", "ich", "--draft", "plain")
    assert "take one" in told("large", "ich", "--draft", "small", "--lookup")
    several = told("large", "ich", "--lookup", "--beams", "2")
    assert "not for several beams" in several
    assert "`--beams 1`" in several
    assert "generates no text" in told("vectors", "ich", "--lookup")
    assert "nowhere" in told("large", "ich", "--draft", "nowhere")
    assert "pair cannot guess the tokens of large: it has an enc" in told(
        "large", "ich", "--draft", "pair"
    )


def test_a_folder_that_asks_for_beams(models: Path, refused: Refused) -> None:
    settings = models / "large" / "generation_config.json"
    settings.write_text(json.dumps({"num_beams": 4}))
    assert "not for several beams" in refused("run", "large", "ich", "--draft", "small")
    assert run(["run", "large", "ich", "--draft", "small", "--beams", "1"]) == 0
