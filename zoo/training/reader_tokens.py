"""The tokenizer of a model that reads whole texts."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from zoo.files.atomic import write_text
from zoo.files.of_model import TOKENIZER
from zoo.running.tokenizer_file import encode, encoded, types_of
from zoo.training.sides import Reader


class Encoded(NamedTuple):
    """A text, or a pair of texts, as ids, with the special tokens that its tokenizer adds.

    Args:
        first: the first piece of at most so many tokens as asked for.
        others: the further pieces.
        types: the types of the tokens of the first piece; None if all are 0.
    """

    first: Sequence[int]
    others: tuple[Sequence[int], ...]
    types: Sequence[int] | None


class EncodedWords(NamedTuple):
    """Words as the ids of their text, with the special tokens that its tokenizer adds.

    Args:
        ids: the ids, at most so many as asked for.
        first: the place in `ids` of the first token of each word; None of a word that no token
            stands for, such as those beyond the end.
    """

    ids: Sequence[int]
    first: list[int | None]


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

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, longest: int | None = None
    ) -> list[Encoded]:
        """Encode texts and pairs of texts. Those of more than `longest` tokens are cut into pieces,
        each with the special tokens. The first piece of such a pair has the beginnings of both, of
        which the longer one is cut until they fit."""
        return [
            Encoded(
                array("i", one.ids),
                tuple(array("i", more.ids) for more in one.overflowing),
                types_of(one, self.reader.token_types),
            )
            for one in self._encoded(texts, longest)
        ]

    def n_truncated(self, texts: Sequence[str | tuple[str, str]], *, longest: int) -> int:
        """The number of texts and pairs of texts of more than `longest` tokens."""
        return sum(bool(one.overflowing) for one in self._encoded(texts, longest))

    def encode_words(self, rows: Sequence[Sequence[str]], *, longest: int) -> list[EncodedWords]:
        """Encode words as the text in which there is a space between two of them, so that a model
        learns from the tokens that it will read in texts."""
        found = self._encoded([" ".join(words) for words in rows], longest)
        return [
            EncodedWords(array("i", one.ids), _first_tokens(one.offsets, words))
            for one, words in zip(found, rows, strict=True)
        ]

    def _encoded(
        self, texts: Sequence[str | tuple[str, str]], longest: int | None
    ) -> Iterator[Any]:
        tokenizer = self.tokenizer
        if longest is not None:
            # A length in C.
            tokenizer.enable_truncation(min(longest, sys.maxsize), strategy="longest_first")
        try:
            yield from encoded(tokenizer, texts)
        finally:
            tokenizer.no_truncation()

    def added(self, *, pairs: bool) -> tuple[int, ...]:
        """The special tokens that the tokenizer adds to a text or a pair of texts."""
        empty = encode(self.tokenizer, "", "" if pairs else None)
        found = zip(empty.ids, empty.special_tokens_mask, strict=True)
        return tuple(id_ for id_, is_special in found if is_special)

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens: those that are not text. A file need not flag those that
        have a use here."""
        added = self.tokenizer.get_added_tokens_decoder()
        flagged = (id_ for id_, token in added.items() if token.special)
        used = (self.mask, self.reader.pad_id, *self.added(pairs=False))
        return frozenset((*flagged, *(id_ for id_ in used if id_ is not None)))

    @cached_property
    def ordinary(self) -> tuple[int, ...]:
        """The ids of all tokens that are text, in their order."""
        return tuple(sorted(set(self.tokenizer.get_vocab().values()) - self.special))

    @property
    def tokenizers(self) -> list[Any]:
        """The one tokenizer, as there are two of other models."""
        return [self.tokenizer]

    def save(self, folder: Path) -> None:
        """Write the tokenizer. Raises `ZooError` as `write_text`."""
        write_text(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))


def _first_tokens(offsets: Sequence[tuple[int, int]], words: Sequence[str]) -> list[int | None]:
    """The first token of each word of a text, from the places of all tokens in its characters. The
    space before a word may be a part of its first token; special tokens have no characters."""
    begins = list(accumulate((len(word) + 1 for word in words), initial=0))
    ends = [begin + len(word) for begin, word in zip(begins, words, strict=False)]
    first: list[int | None] = [None] * len(words)
    for token, (start, end) in enumerate(offsets):
        word = bisect_right(ends, start)  # the first one that ends after the token begins
        if start < end and word < len(words) and begins[word] < end and first[word] is None:
            first[word] = token
    return first
