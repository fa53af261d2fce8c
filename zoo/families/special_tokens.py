"""The special tokens of a model, as `transformers` expects them beside its weights."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from zoo.families.origin import Companion
from zoo.files.of_model import TARGET_TOKENIZER, TOKENIZER, TOKENIZER_CONFIG
from zoo.generation.methods import Id
from zoo.json_files import read_json
from zoo.purpose import Reading
from zoo.running.settings import Settings, SettingsWarning, read_settings
from zoo.running.text import mask_of
from zoo.running.tokenizer_file import read_tokenizer

_TOKENS = ("bos_token", "eos_token", "pad_token")


class SpecialIds(Settings):
    """The special ids in the settings of generation."""

    bos_token_id: Id | None = None
    pad_token_id: Id | None = None

    def stated(self) -> dict[str, Any]:
        """The ids by the keys of a config.json, None for those that are not stated."""
        keys = (*(f"{token}_id" for token in _TOKENS), "decoder_start_token_id")
        return {key: getattr(self, key) for key in keys}


def read_special_ids(folder: Path) -> SpecialIds:
    """Read the special ids of a model. Raises `WeightsError` if the settings of generation in its
    folder are damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # for who generates
        return read_settings(folder, None, has_source=True, kind=SpecialIds)


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
    tokenizer, ids = read_tokenizer(path), read_special_ids(folder).stated()
    if reading is not None and ids["pad_token_id"] is None:
        ids["pad_token_id"] = reading.pad_id
    ids["mask_token_id"] = mask_of(tokenizer)
    tokens = {
        token: tokenizer.id_to_token(one)
        for token in (*_TOKENS, "mask_token")
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
