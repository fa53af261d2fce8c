"""What the tests of mistakes share: the text of a small spec, and the contents of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Refused = Callable[..., str]

KEYS = {
    "format": "1",
    "name": '"bad"',
    "builder": '"encoder_decoder"',
    "source_vocab": "10",
    "target_vocab": "11",
    "n_layers": "2",
    "d_model": "8",
    "n_heads": "2",
    "d_ff": "16",
}


def spec(*lines: str, without: str = "", **keys: str) -> str:
    """A small valid spec, with some keys replaced or left out and lines added."""
    stated = {key: value for key, value in {**KEYS, **keys}.items() if key != without}
    return "".join(f"{key} = {value}\n" for key, value in stated.items()) + "".join(
        f"{line}\n" for line in lines
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file and folder below, but for Python's caches."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }
