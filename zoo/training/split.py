"""Splitting examples into training and held-out data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from zoo.errors import TrainingError
from zoo.wording import counted

Words = tuple[str, ...]
"""The words of a text, or the labels of each."""


class Example(NamedTuple):
    """One example.

    Args:
        source: the source, or the text, or the first text of a pair, that a label is for; or the
            words whose labels are the target; or what is read before each answer of a chat; None
            for text that has no source.
        target: the target, the text that has no source, or the label; or the labels of words, or
            the answers of a chat.
        second: the second text of a pair with a label.
        opening: of a chat, what is read before the first answer of all.
    """

    source: str | Words | None
    target: str | Words
    second: str | None = None
    opening: str | None = None

    @property
    def source_text(self) -> str:
        """The source as text: words with spaces between them."""
        return " ".join(self.source) if isinstance(self.source, tuple) else self.source or ""

    @property
    def target_text(self) -> str:
        """The target as text: labels with spaces between them."""
        return " ".join(self.target) if isinstance(self.target, tuple) else self.target

    @property
    def words(self) -> Words:
        """The words, of an example of words."""
        return self.source if isinstance(self.source, tuple) else ()

    @property
    def prompts(self) -> Words:
        """The prompt, or what is read before each answer of a chat."""
        return self.source if isinstance(self.source, tuple) else (self.source or "",)

    @property
    def targets(self) -> Words:
        """The label or the answer, or those of the words or of a chat."""
        return self.target if isinstance(self.target, tuple) else (self.target,)

    @property
    def source_or_text(self) -> str:
        """The key by which examples are split: the source, for text the text itself, and for a chat
        its opening."""
        if self.opening is not None:
            return self.opening
        return self.target_text if self.source is None else self.source_text

    @property
    def texts(self) -> str | tuple[str, str]:
        """What a model reads as a whole: a text, or a pair of texts."""
        text = self.source_or_text
        return text if self.second is None else (text, self.second)

    @property
    def unit(self) -> Literal["line", "pair", "text"]:
        """What it is called in messages: a text without a source is a line, and what is learned of
        a chat is a text."""
        if self.source is None:
            return "line"
        return "pair" if self.opening is None else "text"

    @property
    def is_blank(self) -> bool:
        """Whether no side has a character other than white space."""
        return not f"{self.source_text}{self.target_text}".strip()


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
