"""Splitting examples into training and held-out data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zoo.errors import TrainingError
from zoo.training.example import Example
from zoo.wording import counted

_KNOWN = {
    "line": "lines are",
    "pair": "pairs have a source that is",
    "text": "texts have an opening that is",
}
_SPLIT_BY = {
    "line": ("different line", "line"),
    "pair": ("source sentence", "different pair"),
    "text": ("opening", "different text"),
}
"""What examples are split by, and what it is counted in."""


class Splits(NamedTuple):
    """The three parts of the data."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    n_duplicates: int = 0
    """The number of pairs of the training data that are the same as an earlier one, and left
    out."""
    read: tuple[Sequence[Example], ...] = ()
    """What the files of the three parts hold, before anything is held out of the first."""

    @property
    def parts(self) -> dict[str, list[Example]]:
        """The parts by their names."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def digest(self) -> str:
        """`sha256:` and the SHA-256 of all examples in their order, whatever is held out."""
        found = hashlib.sha256()
        for examples in self.read:
            found.update(f"{len(examples)}\n".encode())
            for example in examples:
                found.update(json.dumps(example).encode())
        return f"sha256:{found.hexdigest()}"

    @property
    def of_pairs(self) -> bool:
        """Whether the examples are pairs of texts with labels."""
        return self.train[0].second is not None

    def notes(self) -> Iterator[str]:
        """Notes on what a reader of the recipe may not expect."""
        if self.n_duplicates:
            yield f"train: left out {counted(self.n_duplicates, f'duplicate {self.train[0].unit}')}"
        learned = {example.source_or_text for example in self.train if not example.is_blank}
        for name, part in (("valid", self.valid), ("test", self.test)):
            if count := sum(example.source_or_text in learned for example in part):
                told = _KNOWN[part[0].unit]
                yield f"{name}: {count:,} of {len(part):,} {told} learned from too"


def held_out(examples: Sequence[Example], counts: Sequence[int], seed: int) -> list[list[Example]]:
    """Split examples by their source sentences, so that no sentence is in two parts.

    The part of a sentence depends on the sentences and the seed, not on their order. Blank lines
    are not held out: all of them would be missing between the other lines.

    Args:
        examples: the examples; text counts as its own source. Each repetition of a text is in
            the same part.
        counts: the number of source sentences in each held-out part.
        seed: decides which sentences are held out.

    Returns:
        The remaining examples, then a part for each count, all in the order of `examples`.

    Raises:
        TrainingError: nothing would be left.
    """
    sources = {example.source_or_text for example in examples if not example.is_blank}
    if sum(counts) >= len(sources):
        what, of = _SPLIT_BY[examples[0].unit]
        told = f"{counted(sum(counts), what)} for `valid` and `test` cannot be held out"
        of_all = f"of {len(sources):,}, in {counted(len(examples), of)}: none would be left"
        raise TrainingError(f"{told} {of_all}")
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
