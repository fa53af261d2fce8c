"""Tokens and flags beside a `tokenizer.json`, as `AutoTokenizer` of transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from word_tokenizers import word_tokenizer

from zoo.errors import WeightsError
from zoo.running.tokenized import read_text

GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
TEXT = "a new <new> of b <pad> and <b>, <other><third> b"


def properties(content: str, **stated: bool) -> dict[str, Any]:
    usual = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
    return {"content": content, **usual, **stated}


def folder_of(tokenizer: Tokenizer, files: Mapping[str, Any], folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def words() -> Tokenizer:
    """The tokens of texts, of which `<b>` is an added one."""
    made = word_tokenizer(["<unk>", "a", "b", "new", "<pad>"], "<unk>", special=["<unk>"])
    made.add_tokens([AddedToken("<b>", special=True)])
    return made


STATED: dict[str, dict[str, Any]] = {
    "none": {"tokenizer_config.json": {}},
    "special tokens by name": {
        "tokenizer_config.json": {"mask_token": "<other>", "eos_token": "<new>"}
    },
    "a token of the vocabulary that becomes special": {
        "tokenizer_config.json": {"pad_token": "<pad>"}
    },
    "one of a name of its own": {"tokenizer_config.json": {"image_token": "<new>"}},
    "further ones": {"tokenizer_config.json": {"additional_special_tokens": ["<other>", "<new>"]}},
    "further ones by the newer key, which counts alone": {
        "tokenizer_config.json": {
            "extra_special_tokens": ["<new>"],
            "additional_special_tokens": ["<other>"],
        }
    },
    "further ones with names": {
        "tokenizer_config.json": {"extra_special_tokens": {"image_token": "<new>"}}
    },
    "by ids, which are not those that they get": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "90": properties("<other>", special=True, lstrip=True),
                "7": properties("<new>", rstrip=True),
            },
            "pad_token": "<third>",
        }
    },
    "other properties of one that there is": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {"5": properties("<b>", lstrip=True, special=True)}
        }
    },
    "the older file": {
        "tokenizer_config.json": {},
        "special_tokens_map.json": {
            "pad_token": properties("<new>", lstrip=True),
            "additional_special_tokens": ["<third>"],
        },
    },
    "the oldest file": {
        "tokenizer_config.json": {"pad_token": "<other>"},
        "added_tokens.json": {"<other>": 9, "<new>": 8, "<b>": 5},
    },
    "special tokens as text": {"tokenizer_config.json": {"split_special_tokens": True}},
    "a beginning, of which the tokenizer says how it is": {
        "tokenizer_config.json": {"add_bos_token": True, "bos_token": "<b>"}
    },
}


@pytest.mark.parametrize("files", [pytest.param(files, id=name) for name, files in STATED.items()])
def test_ids_and_texts_are_those_of_transformers(files: dict[str, Any], tmp_path: Path) -> None:
    files = {**files, "tokenizer_config.json": GENERIC | files["tokenizer_config.json"]}
    folder = folder_of(words(), files, tmp_path)
    theirs, ours = AutoTokenizer.from_pretrained(folder), read_text(folder)
    ids = theirs(TEXT)["input_ids"]
    assert ours.encode(TEXT) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, special=True) == theirs.decode(ids)


def bert(lower_case: bool) -> Tokenizer:
    made = word_tokenizer(["[UNK]", "a", "A"], "[UNK]")
    made.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    return made


def bytes_of_words() -> Tokenizer:
    made = Tokenizer(models.BPE({"a": 0, "Ġ": 1, "Ġa": 2}, [("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        (bert(True), {"do_lower_case": False}),
        (bert(False), {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}),
        (bert(True), {"strip_accents": False}),
        (bert(True), {"tokenize_chinese_chars": False}),
        (bytes_of_words(), {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer"}),
    ],
)
def test_a_flag_that_contradicts_the_tokenizer(
    tokenizer: Tokenizer, config: dict[str, Any], tmp_path: Path
) -> None:
    folder = folder_of(tokenizer, {"tokenizer_config.json": config}, tmp_path)
    key, stated = next(iter(config.items()))
    with pytest.raises(WeightsError) as refused:
        read_text(folder)
    (problem,) = refused.value.problems
    assert problem.place is not None
    assert problem.place.file == str(folder / "tokenizer_config.json")
    assert problem.message == (
        f"`{key}` is {json.dumps(stated)}, and in the tokenizer.json beside it "
        f"{json.dumps(not stated)}: it is not known with which the model was trained"
    )
    assert problem.help == (
        'change one of them; with `"tokenizer_class": "PreTrainedTokenizerFast"`, which reads the '
        "tokenizer.json alone, this key says nothing"
    )


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        (bert(True), {"do_lower_case": True, "strip_accents": True}),
        (bert(False), {"do_lower_case": False, "strip_accents": False}),
        (bert(True), {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
        (bytes_of_words(), {"add_prefix_space": None, "do_lower_case": True}),
    ],
)
def test_a_flag_that_does_not(tokenizer: Tokenizer, config: dict[str, Any], tmp_path: Path) -> None:
    own = tokenizer.encode("a A").ids
    folder = folder_of(tokenizer, {"tokenizer_config.json": config}, tmp_path)
    assert read_text(folder).encode("a A") == own


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer_config.json": {"added_tokens_decoder": []}},
            "`added_tokens_decoder` must be a table of tokens by their ids",
        ),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"x": "<new>"}}},
            "`added_tokens_decoder`: `x` is no id of a token",
        ),
        (
            {"tokenizer_config.json": {"pad_token": {"lstrip": True}}},
            "`pad_token` must be the text of a token, or a table with it under `content`",
        ),
        (
            {"tokenizer_config.json": {"additional_special_tokens": "<new>"}},
            "`additional_special_tokens` must be a list of tokens",
        ),
        (
            {"tokenizer_config.json": {"additional_special_tokens": ["<new>", 3]}},
            "`additional_special_tokens[1]` must be the text of a token, or a table with it under "
            "`content`",
        ),
        ({"added_tokens.json": {"<new>": [1]}}, "`<new>`: `[1]` is no id of a token"),
        (
            {"special_tokens_map.json": {"pad_token": 3}},
            "`pad_token` must be the text of a token, or a table with it under `content`",
        ),
    ],
)
def test_what_is_no_token(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = folder_of(words(), files, tmp_path)
    with pytest.raises(WeightsError) as refused:
        read_text(folder)
    assert str(refused.value) == f"{folder / next(iter(files))}: error: {message}"
