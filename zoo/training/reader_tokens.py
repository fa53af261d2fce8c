"""The tokenizer of a model that reads whole texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from zoo.atomic import write_text
from zoo.model_files import TOKENIZER
from zoo.running.tokenizer_file import encoded
from zoo.training.sides import Reader


class Encoded(NamedTuple):
    """A text as ids, with the special tokens that its tokenizer adds: the first piece of at most so
    many tokens as asked for, and the further ones."""

    first: list[int]
    others: tuple[list[int], ...]


@dataclass(frozen=True)
class ReaderTokens:
    """The tokenizer of a model that reads whole texts, and its special ids.

    Args:
        tokenizer: of the library `tokenizers`.
        reader: what the model reads.
        pad: the id that fills short sequences.
        mask: the id of the mask token; None if the tokenizer has none.
    """

    tokenizer: Any
    reader: Reader
    pad: int
    mask: int | None

    def encode(self, texts: Sequence[str], *, longest: int | None = None) -> list[Encoded]:
        """Encode texts. Those of more than `longest` tokens are cut into pieces, each with the
        special tokens."""
        tokenizer = self.tokenizer
        if longest is not None:
            tokenizer.enable_truncation(min(longest, sys.maxsize))  # a length in C
        try:
            found = encoded(tokenizer, texts)
        finally:
            tokenizer.no_truncation()
        return [Encoded(one.ids, tuple(more.ids for more in one.overflowing)) for one in found]

    @property
    def n_special(self) -> int:
        """The number of special tokens that the tokenizer adds to a text."""
        return len(self.added)

    @cached_property
    def added(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer adds to a text."""
        empty = self.tokenizer.encode("")
        pairs = zip(empty.ids, empty.special_tokens_mask, strict=True)
        return tuple(id_ for id_, is_special in pairs if is_special)

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens: those that are not text. A file need not flag those that
        have a use here."""
        added = self.tokenizer.get_added_tokens_decoder()
        flagged = (id_ for id_, token in added.items() if token.special)
        used = (self.mask, self.reader.pad_id, *self.added)
        return frozenset((*flagged, *(id_ for id_ in used if id_ is not None)))

    @cached_property
    def ordinary(self) -> tuple[int, ...]:
        """The ids of all tokens that are text, in their order."""
        return tuple(sorted(set(self.tokenizer.get_vocab().values()) - self.special))

    def save(self, folder: Path) -> None:
        """Write the tokenizer. Raises `ZooError` as `write_text`."""
        write_text(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))
