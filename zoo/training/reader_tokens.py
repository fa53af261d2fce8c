"""The tokenizer of a model that reads whole texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from zoo.atomic import write_text
from zoo.model_files import TOKENIZER
from zoo.running.text import types_of
from zoo.training.sides import Reader


class Encoded(NamedTuple):
    """A text, or a pair of texts, as ids, with the special tokens that its tokenizer adds.

    Args:
        first: the first piece of at most so many tokens as asked for.
        others: the further pieces.
        types: the types of the tokens of the first piece; None if all are 0.
    """

    first: list[int]
    others: tuple[list[int], ...]
    types: list[int] | None


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
        tokenizer = self.tokenizer
        if longest is not None:
            tokenizer.enable_truncation(longest, strategy="longest_first")
        try:
            found = tokenizer.encode_batch(list(texts))
        finally:
            tokenizer.no_truncation()
        return [
            Encoded(
                one.ids,
                tuple(more.ids for more in one.overflowing),
                types_of(one, self.reader.token_types),
            )
            for one in found
        ]

    def n_special(self, *, pairs: bool) -> int:
        """The number of special tokens that the tokenizer adds to a text or a pair of texts."""
        added: int = self.tokenizer.num_special_tokens_to_add(is_pair=pairs)
        return added

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens: those that are not text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    @cached_property
    def ordinary(self) -> tuple[int, ...]:
        """The ids of all tokens that are text, in their order."""
        return tuple(sorted(set(self.tokenizer.get_vocab().values()) - self.special))

    def save(self, folder: Path) -> None:
        """Write the tokenizer. Raises `ZooError` as `write_text`."""
        write_text(folder / TOKENIZER, self.tokenizer.to_str(pretty=True))
