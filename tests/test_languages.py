"""Translators that know many languages: those of the texts and of the translations are chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration
from trials import Refused
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "ein", "Bier", "a", "beer", "une", "biere", "."]
LANGUAGES = ["eng_Latn", "deu_Latn", "fra_Latn", "__es__"]
IDS = {word: number for number, word in enumerate([*WORDS, *LANGUAGES])}


def published(folder: Path, template: str, **settings: Any) -> M2M100ForConditionalGeneration:
    """A tiny translator, as it is published, with a tokenizer that marks texts by a template."""
    torch.manual_seed(1)
    config = M2M100Config(
        vocab_size=len(IDS),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=1.0,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = M2M100ForConditionalGeneration(config).eval()
    model.generation_config.update(**settings)
    model.save_pretrained(folder)
    made = word_tokenizer(IDS, "<unk>", special=[*WORDS[:4], *LANGUAGES], single=template)
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model


def ids_of(text: str) -> list[int]:
    return [IDS[word] for word in text.split()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder for what is published."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("template", "read"),
    [
        ("eng_Latn $A </s>", "deu_Latn ein Bier . </s>"),
        ("$A </s> eng_Latn", "ein Bier . </s> deu_Latn"),
    ],
    ids=["before", "after"],
)
def test_it_translates_as_transformers_does(
    source: Path, tmp_path: Path, template: str, read: str
) -> None:
    theirs = published(source, template)
    zoo.import_folder(source, tmp_path / "ours")
    model = zoo.TextModel.load(tmp_path / "ours")
    found = []
    assert model.translating(target="es").text.encode("ein Bier .") != ids_of(read)
    for language in ("fra_Latn", "__es__", "es"):
        asked = model.translating(source="deu_Latn", target=language)
        (answer,) = asked.run(["ein Bier ."], max_new_tokens=8)
        id_ = IDS.get(language, IDS["__es__"])
        expected = theirs.generate(
            torch.tensor([ids_of(read)]), forced_bos_token_id=id_, max_new_tokens=8
        )
        assert answer["ids"] == expected[0, 1:].tolist()
        assert answer["ids"][0] == id_
        found.append(answer["text"])
    assert found[0] != found[1] == found[2]


def test_a_text_alone_is_marked_and_not_a_word_like_the_mark(source: Path, tmp_path: Path) -> None:
    published(source, "eng_Latn $A </s>")
    zoo.import_folder(source, tmp_path / "ours")
    text = zoo.TextModel.load(tmp_path / "ours").translating(source="deu_Latn").text
    assert text.encode("a eng_Latn") == ids_of("deu_Latn a eng_Latn </s>")
    assert text.encode("") == ids_of("deu_Latn </s>")


def test_a_language_that_begins_translations_alone(source: Path, tmp_path: Path) -> None:
    """As in the first mBART, whose folder has it as `decoder_start_token_id`."""
    theirs = published(source, "$A </s> eng_Latn", decoder_start_token_id=IDS["deu_Latn"])
    zoo.import_folder(source, tmp_path / "ours")
    model = zoo.TextModel.load(tmp_path / "ours").translating(target="fra_Latn")
    (answer,) = model.run(["a beer"], max_new_tokens=8)
    expected = theirs.generate(
        torch.tensor([ids_of("a beer </s> eng_Latn")]),
        decoder_start_token_id=IDS["fra_Latn"],
        max_new_tokens=8,
    )
    assert answer["ids"] == expected[0, 1:].tolist()


def test_on_the_command_line(
    source: Path, project: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    published(source, "eng_Latn $A </s>")
    zoo.import_folder(source, "ours")
    asked = ("run", "ours", "ein Bier", "-n", "8")
    languages = ("--source-language", "deu_Latn", "--target-language", "fra_Latn")
    assert run([*asked, *languages, "--json"]) == 0
    model = zoo.TextModel.load("ours").translating(source="deu_Latn", target="fra_Latn")
    assert json.loads(capsys.readouterr().out) == model.run(["ein Bier"], max_new_tokens=8)[0]
    told = refused(*asked, "--target-language", "fra_Latin")
    assert "the tokenizer has no language `fra_Latin`" in told
    assert "did you mean `fra_Latn`?" in told
    Path("ours/tokenizer_config.json").unlink()
    assert "no language `</s>`" in refused(*asked, "--source-language", "</s>")
    told = refused("run", "transformer-small.tatoeba-de-en", "Bier", "--target-language", "de")
    assert "no language `de`" in told
    assert "it has no such tokens" in told


def test_what_is_no_translator_of_many_languages(
    source: Path, project: Path, refused: Refused
) -> None:
    published(source, "$A </s>")
    zoo.import_folder(source, "unmarked")
    told = refused("run", "unmarked", "a", "--source-language", "deu_Latn")
    assert "the tokenizer marks no text by its language" in told
    spec = {"format": 1, "name": "d", "d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 8}
    zoo.save(zoo.build({**spec, "builder": "decoder", "vocab": 9}), "decoder")
    told = refused("run", "decoder", "5", "--target-language", "deu_Latn")
    assert "d is no translator with a tokenizer" in told
    sizes = {"builder": "encoder_decoder", "source_vocab": 9, "target_vocab": 9}
    zoo.save(zoo.build({**spec, **sizes}), "ids")
    told = refused("run", "ids", "5", "--target-language", "deu_Latn")
    assert "d is no translator with a tokenizer" in told
