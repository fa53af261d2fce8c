"""Texts that are longer than a model's positions, cut as the tokenizers of `transformers` do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_answers import LONGEST, QUESTION, TEXT, bert_tokenizer, expected, published
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from trials import Refused

import zoo
from zoo.cli import run

LONG = "it was printed in ulm and then in oslo"
POSITIONS = 12


@pytest.fixture
def classifier(project: Path) -> tuple[Any, Any]:
    """The tokenizer and the model of `transformers`, which the zoo has as `bert`."""
    torch.manual_seed(5)
    made = bert_tokenizer()
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=POSITIONS,
        num_labels=3,
        initializer_range=0.5,
    )
    theirs = BertForSequenceClassification(config).eval()
    theirs.save_pretrained(project / "source")
    made.save(str(project / "source" / "tokenizer.json"))
    zoo.import_folder(project / "source", project / "bert")
    return PreTrainedTokenizerFast(tokenizer_object=made), theirs


def probabilities(found: dict[str, Any]) -> list[float]:
    by_class = sorted((one["class"], one["probability"]) for one in found["classes"])
    return [probability for _, probability in by_class]


@pytest.mark.parametrize("text", [LONG, (LONG, "no"), ("no", LONG), (LONG, LONG)])
@pytest.mark.parametrize("most", [None, 9])
@torch.no_grad()
def test_the_end_is_left_out(classifier: tuple[Any, Any], text: Any, most: int | None) -> None:
    tokenizer, theirs = classifier
    sides = (text,) if isinstance(text, str) else text
    length = most or POSITIONS
    encoded = tokenizer(
        *sides, truncation=True, max_length=length, return_tensors="pt", return_token_type_ids=True
    )
    assert encoded.input_ids.shape[1] == length
    model = zoo.TextModel.load("bert").truncating(most)
    with pytest.warns(UserWarning, match=f"^{length} tokens of each are read, and of a longer"):
        (found,) = model.run([text])
    given = {key: encoded[key] for key in ("input_ids", "token_type_ids")}
    wanted = theirs(**given).logits.softmax(-1)[0].tolist()
    assert probabilities(found) == pytest.approx(wanted, abs=1e-6)


def test_what_fits_is_whole(classifier: tuple[Any, Any]) -> None:
    plain = zoo.TextModel.load("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plain.truncating().run(["ulm"]) == plain.run(["ulm"])
    with pytest.raises(zoo.InputError, match="longer than the model's 12 positions"):
        plain.run([LONG])  # which is as it was


def test_of_a_question_and_a_text_the_text_is_cut(project: Path) -> None:
    theirs, tokenizer = published("bert", project)
    model = zoo.TextModel.load("bert").truncating(60)
    with pytest.warns(UserWarning, match="60 tokens"):
        (found,) = model.run([(QUESTION, TEXT)])
    kept = tokenizer(
        QUESTION, TEXT, truncation="only_second", max_length=60, return_offsets_mapping=True
    )
    end = kept["offset_mapping"][-2][1]
    (probability, *span), *_ = expected(theirs, tokenizer, "bert", QUESTION, TEXT[:end])
    (answer,) = found["spans"]
    assert [answer["start"], answer["end"]] == span
    assert answer["probability"] == pytest.approx(probability, abs=1e-6)
    assert end < len(TEXT)
    assert LONGEST < 60


def test_the_command(
    classifier: tuple[Any, Any], refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`--truncate`" in refused("run", "bert", LONG)
    with pytest.warns(UserWarning, match="12 tokens"):
        assert run(["run", "bert", "--truncate", LONG, "--json"]) == 0
    assert '"classes"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("most", "message"),
    [
        (13, "has 12 positions, fewer than 13 tokens"),
        (2, "2 tokens would be those that are put around a text alone"),
        (0, "`n_tokens` is an integer of at least 1"),
    ],
)
def test_numbers_that_do_not_fit(classifier: tuple[Any, Any], most: int, message: str) -> None:
    with pytest.raises(zoo.InputError, match=message):
        zoo.TextModel.load("bert").truncating(most)
