"""Models that find the answer of a question in a text, against the same models of `transformers`
and a search of all spans."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForQuestionAnswering,
)
from trials import Refused

import zoo
from zoo.cli import run

QUESTION = "Who wrote the book?"
TEXT = (
    "The\u00a0book  was written by Zo\u00eb \U0001f680 Zimmer in 1999; it was printed in Ulm, and "
    "then, many years later, in Oslo, where Zo\u00eb lived, wrote and printed other books. The end."
)
LONGEST = 30


def bert_tokenizer() -> Tokenizer:
    """Words of one or two letters, in lower case and without accents."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789?.,;"
    begins = [a + b for a in letters[:26] for b in letters[:26]]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *begins, *(f"##{x}" for x in letters)]
    made = Tokenizer(
        models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def roberta_tokenizer() -> Tokenizer:
    """Bytes."""
    tokens = ["<s>", "<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def published(kind: str, folder: Path) -> tuple[Any, Any]:
    """A model with random weights and its tokenizer, of `transformers`; its zoo model is written to
    the folder."""
    torch.manual_seed(3)
    made = {"bert": bert_tokenizer, "roberta": roberta_tokenizer}[kind]()
    sizes: dict[str, Any] = {
        "vocab_size": made.get_vocab_size(),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "initializer_range": 0.5,
    }
    theirs: Any
    if kind == "bert":
        theirs = BertForQuestionAnswering(BertConfig(**sizes, max_position_embeddings=300))
    else:
        theirs = RobertaForQuestionAnswering(
            RobertaConfig(**sizes, max_position_embeddings=302, type_vocab_size=1, pad_token_id=1)
        )
    source = folder / f"{kind}-source"
    theirs.eval().save_pretrained(source)
    made.save(str(source / "tokenizer.json"))
    zoo.import_folder(source, folder / kind)
    return theirs, PreTrainedTokenizerFast(tokenizer_object=made)


def expected(theirs: Any, tokenizer: Any, kind: str, question: str, text: str) -> list[Any]:
    """All answers by the formula of `transformers`, best first, as (probability, start, end)."""
    encoded = tokenizer(question, text, return_offsets_mapping=True, return_token_type_ids=True)
    ids = torch.tensor([encoded["input_ids"]])
    types = torch.tensor([encoded["token_type_ids"]]) if kind == "bert" else None
    with torch.no_grad():
        out = theirs(ids, token_type_ids=types)
    starts, ends = out.start_logits[0].softmax(-1), out.end_logits[0].softmax(-1)
    offsets = encoded["offset_mapping"]
    sides = enumerate(encoded.sequence_ids(0))
    places = [n for n, side in sides if side == 1 and text[slice(*offsets[n])].strip()]
    return sorted(
        (
            (float(starts[i] * ends[j]), offsets[i][0], offsets[j][1])
            for n, i in enumerate(places)
            for j in places[n : n + LONGEST]
        ),
        reverse=True,
    )


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_answers_are_the_likeliest_spans(kind: str, project: Path) -> None:
    theirs, tokenizer = published(kind, project)
    model = zoo.TextModel.load(kind)
    assert model.task == "answer"
    pairs = [(QUESTION, TEXT), ("Where?", TEXT), (QUESTION, "Ulm"), ("Who?", "By Zo\u00eb.")]
    found = model.run(pairs, top=20)
    for (question, text), report in zip(pairs, found, strict=True):
        wanted = expected(theirs, tokenizer, kind, question, text)[:20]
        spans = report["spans"]
        assert [span["probability"] for span in spans] == pytest.approx(
            [one[0] for one in wanted], rel=1e-4
        )
        for span, (_, start, end) in zip(spans, wanted, strict=True):
            assert (span["start"], span["end"]) == (start, end)
            assert span["text"] == text[start:end]
    assert [one["spans"] for one in model.run(pairs)] == [one["spans"][:1] for one in found]


def test_spaces_are_no_part_of_an_answer(project: Path) -> None:
    """Tokenizers of sentencepiece count the space before a word as a part of its first token."""
    tokens = ["<s>", "</s>", "\u2581", "\u2581a", "\u2581b", "c"]
    made = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], 0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    sizes = {"format": 1, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    heads = {
        "answers": "span",
        "words": {"kind": "token_classifier", "n_classes": 2, "labels": ["O", "B-X"]},
    }
    for name, head in heads.items():
        spec = {**sizes, "name": name, "builder": "encoder", "vocab": len(tokens), "head": head}
        model = zoo.build(spec)
        with torch.no_grad():
            model.get_parameter("head.out.bias")[-1] += 9.0  # all words are entities
        zoo.save(model, project / name)
        made.save(f"{name}/tokenizer.json")
    text = "a  bc b"
    (found,) = zoo.TextModel.load("answers").run([("a", text)], top=20)
    wanted = {"a", "a  b", "a  bc", "a  bc b", "b", "bc", "bc b", "c", "c b"}
    assert {one["text"] for one in found["spans"]} == wanted
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found["spans"])
    (found,) = zoo.TextModel.load("words").run([text])
    assert [(one["text"], one["start"]) for one in found["spans"]] == [
        ("a", 0),
        ("bc", 3),
        ("b", 6),
    ]


def test_answers_of_the_command(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    published("bert", project)
    two = zoo.TextModel.load("bert").run([(QUESTION, TEXT)], top=2)[0]["spans"]
    shown = [f"{span['probability']:.3f} {span['text']}" for span in two]
    assert run(["run", "bert", "--pairs", QUESTION, TEXT]) == 0
    assert capsys.readouterr().out == shown[0] + "\n"
    assert run(["run", "bert", "--pairs", QUESTION, TEXT, "--top", "2"]) == 0
    assert capsys.readouterr().out == "  ".join(shown) + "\n"
    line = f"{QUESTION}\t{TEXT}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(2 * line)))
    assert run(["run", "bert", "--pairs", "--json"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert reports == 2 * [{"task": "answer", "spans": two[:1]}]


def test_what_holds_no_answer(project: Path, refused: Refused) -> None:
    published("bert", project)
    told = refused("run", "bert", TEXT)
    assert "takes pairs of a question and a text" in told
    assert "--pairs" in told
    assert "the text is empty" in refused("run", "bert", "--pairs", QUESTION, " ")
    assert "tokens are longer than the model's 300 positions" in refused(
        "run", "bert", "--pairs", QUESTION, 4 * TEXT
    )
    model = zoo.TextModel.load("bert")
    with pytest.raises(zoo.InputError, match="takes pairs of a question and a text"):
        model.run([[{"role": "user", "content": QUESTION}]])
    with pytest.raises(zoo.InputError, match="generates no text: leave `stop` out"):
        model.run([(QUESTION, TEXT)], stop=["."])
