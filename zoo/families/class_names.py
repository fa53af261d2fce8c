"""The names of classes in a config.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def unnamed(number: int) -> tuple[str, ...]:
    """The names that `transformers` gives to so many classes without names."""
    return tuple(f"LABEL_{place}" for place in range(number))


def written_names(names: Sequence[str]) -> dict[str, Any]:
    """The keys of a config.json that name classes, with their values."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
