"""Splitting examples into training and held-out data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from zoo.errors import TrainingError


class Example(NamedTuple):
    """One example; text has no source."""

    source: str | None
    target: str

    @property
    def source_or_text(self) -> str:
        """The key by which examples are split: the source, or for text the text itself."""
        return self.target if self.source is None else self.source


class Splits(NamedTuple):
    """The three parts of the data."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]


def held_out(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[list[Example]]:
    """Split examples by their source sentences, so that no sentence is in two parts.

    The part of a sentence depends on the sentences and the seed, not on their order.

    Args:
        examples: the examples; text counts as its own source.
        counts: the number of source sentences in each held-out part.
        seed: decides which sentences are held out.

    Returns:
        The remaining examples, then a part for each count, all in the order of `examples`.

    Raises:
        TrainingError: nothing would be left.
    """
    sources = {example.source_or_text for example in examples}
    if sum(counts) >= len(sources):
        what = "lines" if examples and examples[0].source is None else "source sentences"
        raise TrainingError(
            f"{sum(counts):,} {what} for `valid` and `test` cannot be held out of {len(sources):,}"
        )
    shuffled = sorted(sources, key=lambda source: _key(source, seed)) if any(counts) else []
    part_of: dict[str, int] = {}
    start = 0
    for part, count in enumerate(counts, 1):
        part_of.update(dict.fromkeys(shuffled[start : start + count], part))
        start += count
    parts: list[list[Example]] = [[] for _ in (None, *counts)]
    for example in examples:
        parts[part_of.get(example.source_or_text, 0)].append(example)
    return parts


def _key(source: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\0{source}".encode()).digest()
