"""What the `tokenizer_config.json` of a model says: its special tokens, and its flags."""

from __future__ import annotations

from pathlib import Path

from zoo.files.of_model import SPECIAL_TOKENS, TOKENIZER_CONFIG
from zoo.json_files import read_json_if_there


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Read the text of each special token of a folder by its name, such as `bos_token`: those of
    `tokenizer_config.json`, and what older checkpoints state beside it. A file may write the
    properties of a token in place of its text. Raises WeightsError if a file is damaged."""
    found: dict[str, str] = {}
    for file in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        for name, value in read_json_if_there(folder / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
    return found


def states(folder: Path, flag: str) -> bool:
    """Whether the `tokenizer_config.json` of a folder says that this is so. Raises WeightsError if
    the file is damaged."""
    return read_json_if_there(folder / TOKENIZER_CONFIG).get(flag) is True
