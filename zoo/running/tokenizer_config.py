"""The `tokenizer_config.json` of a model: its special tokens, and its chat templates."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from zoo.errors import Place, Problem, WeightsError
from zoo.files.endless import check_ends
from zoo.files.of_model import SPECIAL_TOKENS, TOKENIZER_CONFIG
from zoo.json_files import read_json_if_there


class NamedTemplate(BaseModel):
    """One of several chat templates."""

    name: str
    template: str


class TokenizerConfig(BaseModel):
    """A `tokenizer_config.json` or `special_tokens_map.json`, as far as it is needed here."""

    model_config = ConfigDict(extra="allow")

    chat_template: str | list[NamedTemplate] | None = None

    def special_tokens(self) -> dict[str, str]:
        """Return the text of each special token by its name, such as `bos_token`. A file may write
        the properties of a token in place of its text."""
        found: dict[str, str] = {}
        for name, value in (self.model_extra or {}).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
        return found


def read_tokenizer_config(path: Path) -> TokenizerConfig:
    """Read such a file; it is empty if there is none. Raises WeightsError if it is damaged."""
    if not os.path.lexists(path):
        return TokenizerConfig()
    try:
        return TokenizerConfig.model_validate_json(read_utf8(path))
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        message = f"this cannot be read for the chat template: {details['msg']}"
        raise WeightsError(Problem(message, Place(str(path)))) from None


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Read the special tokens of a folder: those of `tokenizer_config.json`, and what older
    checkpoints state beside it. Raises WeightsError if a file is damaged."""
    older = read_tokenizer_config(folder / SPECIAL_TOKENS)
    config = read_tokenizer_config(folder / TOKENIZER_CONFIG)
    return {**older.special_tokens(), **config.special_tokens()}


def states(folder: Path, flag: str) -> bool:
    """Whether the `tokenizer_config.json` of a folder says that this is so. Raises WeightsError if
    the file is damaged."""
    return read_json_if_there(folder / TOKENIZER_CONFIG).get(flag) is True


def read_utf8(path: Path) -> str:
    """Read a text file. Raises WeightsError if it cannot be read."""
    try:
        check_ends(path)
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(Problem(f"this cannot be read: {error}", Place(str(path)))) from None
