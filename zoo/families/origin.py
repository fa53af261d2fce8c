"""Where an imported model comes from: what its file remembers, so that it can be exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
)
"""The files beside the weights that belong to a model: its tokenizer, and how it is used."""


class Origin(BaseModel):
    """The checkpoint that a model was imported from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    """The family that read it."""
    config: Mapping[str, Any]
    """Its config.json."""
    tensors: tuple[str, ...]
    """The names of its tensors, in the spelling of today."""
    renamed: Mapping[str, str] = {}
    """Its own older spellings, by those names."""
    files: Mapping[str, str] = {}
    """The files that came along, with the SHA-256 of each."""


@dataclass(frozen=True)
class Companion:
    """A file beside the weights."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def find_companions(folder: Path) -> list[Companion]:
    """The files of a folder that belong to its model and are not its weights."""
    return [
        Companion(name, (folder / name).read_bytes())
        for name in COMPANIONS
        if (folder / name).is_file()
    ]


def config_text(config: Mapping[str, Any]) -> str:
    """A config.json as it is written."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"
