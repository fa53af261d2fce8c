"""The special tokens of a model, as `transformers` expects them beside its weights."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from zoo.families.companions import Companion
from zoo.files.of_model import TARGET_TOKENIZER, TOKENIZER, TOKENIZER_CONFIG
from zoo.generation.methods import Id
from zoo.json_files import read_json
from zoo.purpose import Reading
from zoo.running.settings import Settings, SettingsWarning, read_settings
from zoo.running.tokenizer_file import mask_of, read_tokenizer, token_of


class _Settings(Settings):
    bos_token_id: Id | None = None
    pad_token_id: Id | None = None


def special_ids(folder: Path, reading: Reading | None) -> dict[str, Any]:
    """The ids of special tokens by the keys of a config.json, None for those that nothing states.

    Args:
        folder: the model's, whose settings of generation state them.
        reading: the first input of ids of the model, which may state that of padding.

    Raises:
        WeightsError: the settings of generation are damaged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # for who generates
        stated = read_settings(folder, None, has_source=True, kind=_Settings)
    pad = stated.pad_token_id
    return {
        "bos_token_id": stated.bos_token_id,
        "eos_token_id": stated.eos_token_id,
        "pad_token_id": reading.pad_id if pad is None and reading is not None else pad,
        "decoder_start_token_id": stated.decoder_start_token_id,
    }


def tokenizer_config(folder: Path, reading: Reading | None) -> Companion | None:
    """The file that tells `transformers` the special tokens of the tokenizer in a model's folder;
    None if there is one, or no tokenizer that `transformers` can use.

    Args:
        folder: the model's.
        reading: the first input of ids of the model.

    Raises:
        WeightsError: the tokenizer or the settings of generation are damaged.
    """
    path = folder / TOKENIZER
    others = (folder / TARGET_TOKENIZER, folder / TOKENIZER_CONFIG)
    if not os.path.lexists(path) or any(map(os.path.lexists, others)):
        return None
    tokenizer, ids = read_tokenizer(path), special_ids(folder, reading)
    ids["mask_token_id"] = mask_of(tokenizer)
    tokens = {
        token: token_of(tokenizer, one)
        for token in ("bos_token", "eos_token", "pad_token", "mask_token")
        for one in _ids(ids[f"{token}_id"])[:1]
    }
    stated: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    if unknown := read_json(path).data["model"].get("unk_token"):
        stated["unk_token"] = unknown
    if reading is not None and reading.longest is not None:
        stated["model_max_length"] = reading.longest
    return Companion(TOKENIZER_CONFIG, json.dumps(stated, indent=2).encode() + b"\n")


def _ids(stated: int | list[int] | None) -> list[int]:
    return [] if stated is None else stated if isinstance(stated, list) else [stated]
