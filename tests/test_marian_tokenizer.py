"""The tokenizers that an import makes of the files of Marian's translators."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel
from transformers.convert_slow_tokenizer import import_protobuf
from trials import Refused

import zoo
from zoo.cli import run

SOURCE = {
    "▁": -3.0,
    "▁a": -2.0,
    "a": -4.0,
    "b": -4.5,
    "ab": -5.0,
    "▁ab": -7.5,
    "c": -6.0,
    ".": -3.5,
}
TARGET = {"▁": -3.0, "▁x": -2.0, "x": -4.0, "y": -4.5, ".": -3.0, "ö": -5.0}
SPECIAL = {"<unk>": 2, "<s>": 3, "</s>": 3}
"""The types of the pieces that match no text: unknown and control."""
TOKENS = ["</s>", "<unk>", *dict.fromkeys([*TARGET, *SOURCE]), ">>fra<<", "<pad>"]
IDS = {token: number for number, token in enumerate(TOKENS)}


def sentencepiece(pieces: Mapping[str, float], **changes: Any) -> bytes:
    """A model as the library SentencePiece saves it, written by the library protobuf."""
    proto = import_protobuf().ModelProto()
    for piece, kind in SPECIAL.items():
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for piece, score in pieces.items():
        proto.pieces.add(piece=piece, score=score)
    proto.trainer_spec.model_type = 1
    proto.trainer_spec.vocab_size = len(pieces) + 3
    proto.normalizer_spec.name = "identity"
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if part == "pieces":
            proto.pieces.add(piece="z", score=0.0, type=value)
        else:
            setattr(getattr(proto, part), key, value)
    written: bytes = proto.SerializeToString()
    return written


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a tiny translator with the files of its tokenizer."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": len(TOKENS)}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    width = {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 16}
    ids = {"pad_token_id": IDS["<pad>"], "decoder_start_token_id": IDS["<pad>"], "eos_token_id": 0}
    folder = tmp_path / "source"
    config = MarianConfig(**sizes, **heads, **width, **ids, forced_eos_token_id=0)
    MarianMTModel(config).save_pretrained(folder)
    (folder / "source.spm").write_bytes(sentencepiece(SOURCE))
    (folder / "target.spm").write_bytes(sentencepiece(TARGET))
    (folder / "vocab.json").write_text(json.dumps(IDS))
    return folder


def imported(source: Path) -> zoo.TextModel:
    zoo.import_folder(source, source.parent / "imported")
    return zoo.TextModel.load(source.parent / "imported")


def best_pieces(word: str) -> list[str]:
    """The likeliest of all divisions of a word into the pieces of the source."""
    cuts = range(1, len(word))
    every = [
        [word[i:j] for i, j in zip((0, *chosen), (*chosen, len(word)), strict=True)]
        for n in range(len(word))
        for chosen in combinations(cuts, n)
    ]
    known = [pieces for pieces in every if all(piece in SOURCE for piece in pieces)]
    return max(known, key=lambda pieces: sum(SOURCE[piece] for piece in pieces))


@pytest.mark.parametrize(
    "text", ["ab", "aab", "abc.", "a b", "  ab   aabab  ", "c.", "abababab", "caab. b"]
)
def test_a_text_becomes_its_likeliest_pieces(source: Path, text: str) -> None:
    expected = [piece for word in text.split() for piece in best_pieces(f"▁{word}")]
    found = imported(source).text.encode(text)
    assert found == [*(IDS[piece] for piece in expected), IDS["</s>"]]


def test_what_is_no_piece_of_the_source(source: Path) -> None:
    """A piece of the target stands for itself alone, and anything else is unknown."""
    text = imported(source).text
    assert text.encode("a?") == [IDS["▁a"], IDS["<unk>"], 0]
    assert text.encode("ö") == [IDS["▁"], IDS["ö"], 0]
    assert text.encode(">>fra<< ab") == [IDS[">>fra<<"], IDS["▁a"], IDS["b"], 0]
    assert text.encode("") == [0]


def test_ids_become_text(source: Path) -> None:
    text = imported(source).text
    ids = [IDS[token] for token in ("▁", "▁x", "y", ".", "▁x", "<unk>", "ab", "<pad>", "</s>")]
    assert text.decode(ids) == "xy. xab"


def test_a_translation_is_that_of_transformers(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source.parent / "imported"
    assert run(["import", str(source), "-o", str(folder)]) == 0
    assert "tokenizer.json, tokenizer_target.json: made of source.spm" in capsys.readouterr().out
    assert run(["run", str(folder), "ab c", "-n", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    theirs = MarianMTModel.from_pretrained(source).eval()
    ids = torch.tensor([[IDS[token] for token in ("▁a", "b", "▁", "c", "</s>")]])
    expected = theirs.generate(ids, max_new_tokens=6)[0, 1:].tolist()
    assert found["ids"] == expected


def test_an_export_has_the_files_of_the_checkpoint_alone(source: Path) -> None:
    imported(source)
    zoo.export_folder(source.parent / "imported", source.parent / "back")
    assert sorted(path.name for path in (source.parent / "back").iterdir()) == sorted(
        path.name for path in source.iterdir()
    )


def test_tables_of_their_own(source: Path) -> None:
    other = ["<pad>", "<unk>", "▁x", "</s>", "y"]
    table = {token: number for number, token in enumerate(other)}
    (source / "target_vocab.json").write_text(json.dumps(table))
    text = imported(source).text
    assert text.encode("ab") == [IDS["▁a"], IDS["b"], 0]
    assert text.decode([2, 4, 3]) == "xy"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "target.spm").unlink(),
        lambda folder: (folder / "source.spm").write_bytes(
            sentencepiece(SOURCE, trainer_spec__model_type=2)
        ),
        lambda folder: (folder / "source.spm").write_bytes(sentencepiece(SOURCE, pieces__type=4)),
        lambda folder: (folder / "source.spm").write_bytes(
            sentencepiece(SOURCE, normalizer_spec__add_dummy_prefix=False)
        ),
        lambda folder: (folder / "target.spm").write_bytes(
            sentencepiece(TARGET, normalizer_spec__remove_extra_whitespaces=False)
        ),
        lambda folder: (folder / "vocab.json").write_text(json.dumps(IDS | {"ab": 99})),
        lambda folder: (folder / "vocab.json").write_text(json.dumps(IDS | {"ab": "x"})),
        lambda folder: (folder / "vocab.json").write_text('{"a": 0}'),
        lambda folder: (folder / "vocab.json").write_text("[]"),
    ],
)
def test_what_is_not_converted(source: Path, change: Callable[[Path], Any]) -> None:
    """The model is imported without a `tokenizer.json`, and the reason is told where it is used."""
    change(source)
    model = imported(source)
    assert not (source.parent / "imported" / "tokenizer.json").exists()
    with pytest.raises(zoo.ZooError, match="so text is written as ids"):
        model.run(["ab"])


def test_a_tokenizer_that_is_there_stays(source: Path) -> None:
    imported(source)
    theirs = (source.parent / "imported" / "tokenizer.json").read_text().replace("▁ab", "▁abc")
    (source / "tokenizer.json").write_text(theirs)
    zoo.import_folder(source, source.parent / "again")
    assert (source.parent / "again" / "tokenizer.json").read_text() == theirs
    assert not (source.parent / "again" / "tokenizer_target.json").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a",
        b"\x0a\x7fabc",
        b"\xff" * 20,
        b"\x0b\x01",
        b"\x08\x01",
        b"\x0a\x02\x18\x01",
        b"\x0a\x05\x0a\x01\xff\x15\x00",
        sentencepiece(SOURCE)[:-3],
        sentencepiece(SOURCE, normalizer_spec__precompiled_charsmap=b"abc"),
    ],
)
def test_what_is_no_sentencepiece_model(source: Path, data: bytes, refused: Refused) -> None:
    (source / "target.spm").write_bytes(data)
    told = refused("import", str(source), "-o", str(source.parent / "imported"))
    assert f"{source / 'target.spm'}: error: this is not a SentencePiece model: " in told
    assert not (source.parent / "imported").exists()
