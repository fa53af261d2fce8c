"""Encoder-decoders that classify texts and find answers, which read a text twice, against
`transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    BartConfig,
    BartForQuestionAnswering,
    BartForSequenceClassification,
)
from trials import Command

import zoo

TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "it", "rains", "is", "wet", "dry", "who", "."]
IDS = {token: number for number, token in enumerate(TOKENS)}
LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}


def published(folder: Path, kind: type[nn.Module], **options: Any) -> nn.Module:
    """A tiny BART of a class of `transformers` with weights that count, as it is published in a
    folder, and imported as `model`."""
    config = BartConfig(
        vocab_size=len(TOKENS),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=20,
        **options,
    )
    torch.manual_seed(0)
    model = kind(config)
    for name, tensor in model.named_parameters():
        nn.init.normal_(tensor, mean=float("norm.weight" in name), std=0.5)
    model.eval().save_pretrained(folder / "published")  # type: ignore[operator]
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.add_special_tokens(TOKENS[:4])
    tokenizer.save(str(folder / "published" / "tokenizer.json"))
    zoo.import_folder(folder / "published", folder / "model")
    return model


def ids_of(*texts: str) -> torch.Tensor:
    """The ids of a text, or of a pair."""
    sides = [[IDS[word] for word in text.split()] for text in texts]
    return torch.tensor([[0, *sides[0], 2, *([2, *sides[1], 2] if sides[1:] else [])]])


def test_a_classifier_of_texts_and_pairs(tmp_path: Path, command: Command) -> None:
    theirs = published(tmp_path, BartForSequenceClassification, id2label=LABELS)
    model = zoo.TextModel.load(tmp_path / "model")
    given: list[Any] = ["it rains .", ("it rains", "it is wet"), ("it rains .", "it is dry .")]
    told = set()
    for text, found in zip(given, model.run(given, top=3), strict=True):
        with torch.no_grad():
            logits = theirs(ids_of(*([text] if isinstance(text, str) else text))).logits[0]
        best = logits.softmax(-1).sort(descending=True)
        assert found["task"] == "classify"
        assert [one["label"] for one in found["classes"]] == [LABELS[int(n)] for n in best.indices]
        assert [one["probability"] for one in found["classes"]] == pytest.approx(
            best.values.tolist(), abs=1e-5
        )
        told.add(tuple(best.values.tolist()))
    assert len(told) == 3
    status, out, err = command("run", str(tmp_path / "model"), "--pairs", *given[1], "--json")
    (alone,) = model.run([given[1]])
    assert (status, json.loads(out), err) == (0, alone, "")


def test_answers(tmp_path: Path) -> None:
    theirs = published(tmp_path, BartForQuestionAnswering)
    question, text = "who rains", "it is wet ."
    ids = ids_of(question, text)
    with torch.no_grad():
        found = theirs(ids)
    begins, ends = (scores[0].log_softmax(-1) for scores in (found.start_logits, found.end_logits))
    first = ids.shape[1] - 1 - len(text.split())
    sums = {
        (a, b): float(begins[a] + ends[b])
        for a in range(first, first + 4)
        for b in range(a, first + 4)
    }
    a, b = max(sums, key=lambda place: sums[place])
    ((span,),) = [
        one["spans"] for one in zoo.TextModel.load(tmp_path / "model").run([(question, text)])
    ]
    assert span["text"] == " ".join(text.split()[a - first : b - first + 1])
    assert span["probability"] == pytest.approx(float(torch.tensor(sums[a, b]).exp()), abs=1e-5)


def test_what_does_not_fit(tmp_path: Path, command: Command) -> None:
    published(tmp_path, BartForSequenceClassification)
    folder = tmp_path / "model"
    status, _, err = command("run", str(folder), "it rains", "--beams", "2")
    assert (status, "model generates no text" in err) == (2, True)
    model = zoo.TextModel.load(folder)
    with pytest.raises(zoo.InputError, match="22"):
        model.run(["it " * 20])
    # A tokenizer that ends texts with something else, as mBART's does.
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(
        single="$A </s> .", special_tokens=[("</s>", 2), (".", IDS["."])]
    )
    made.save(str(folder / "tokenizer.json"))
    with pytest.raises(zoo.InputError, match="by its end, the id 2, and this one ends with 10"):
        zoo.TextModel.load(folder).run(["it rains"])
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    with pytest.raises(zoo.InputError, match="no file says with which id this begins"):
        zoo.TextModel.load(folder).run(["it rains"])
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 99}')
    with pytest.raises(zoo.WeightsError, match="`decoder_start_token_id` holds the id 99"):
        zoo.TextModel.load(folder).run(["it rains"])
