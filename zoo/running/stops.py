"""Texts at which a generated text stops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from zoo.errors import InputError
from zoo.files.of_model import TOKENIZER
from zoo.running.text import PARTIAL, Detokenizer
from zoo.running.tokenizer_file import check_text


@dataclass(frozen=True, slots=True)
class Stops:
    """Stops a text before the first of some texts, whichever tokens they come in.

    As the `stop` of `zoo.generate`, it ends the generation of a sequence.

    Args:
        text: turns ids into text.
        texts: the texts.
        ids: those of special tokens that are to stop it, which its text does not show.
    """

    text: Detokenizer
    texts: tuple[str, ...]
    ids: frozenset[int]

    @classmethod
    def read(cls, stop: Sequence[str], text: Detokenizer) -> Self | None:
        """Check the stop texts of a user; None if there are none.

        Raises:
            InputError: they are not a list of texts, one is empty or cannot be in what is
                generated, or the model has no tokenizer, so that it generates no text.
        """
        if isinstance(stop, str) or not isinstance(stop, Sequence):
            raise InputError('`stop` is a list of texts, of one text too: `stop=["..."]`')
        if not stop:
            return None
        if text.writes_ids:
            raise InputError(
                f"the model's folder holds no {TOKENIZER}, so there is no text to `stop` at",
                help="`--eos` takes an id, and in Python the `stop` of `zoo.generate` several",
            )
        special = text.special_tokens()
        for one in stop:
            check_text(one)
            if not one:
                raise InputError("`stop` is an empty text, at which everything stops")
            within = [token for token in special if token in one and token != one]
            if within:
                raise InputError(
                    f"`stop` {one!r:.80} has the special token {within[0]!r:.80} within, which "
                    "is not shown in a text",
                    help="state the special token alone",
                )
        texts = tuple(one for one in stop if one not in special)
        return cls(text, texts, frozenset(special[one] for one in stop if one in special))

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether a text stops after these new ids."""
        if ids[-1] in self.ids:
            return True
        end = self._end(ids)
        may = self._first(end) is not None or PARTIAL in end
        return may and self._first(self.text.decode(ids)) is not None

    def before(self, text: str) -> str:
        """A text up to where it stops."""
        return text[: self._first(text)]

    def pieces_before(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces of a text up to where it stops. What may be the beginning of a stop text waits
        for what follows."""
        waiting = ""
        for piece in pieces:
            waiting += piece
            if (end := self._first(waiting)) is not None:
                if end:
                    yield waiting[:end]
                return
            n_sure = len(waiting) - self._n_begun(waiting)
            if n_sure:
                yield waiting[:n_sure]
            waiting = waiting[n_sure:]
        if waiting:
            yield waiting

    def _end(self, ids: Sequence[int]) -> str:
        """The text of the last ids alone: long enough for a stop text that ends in the last one,
        and for a beginning that may be another one after the ids before."""
        n = 8
        while n < len(ids) and len(self.text.decode(ids[-n:-1])) <= 1 + self._longest:
            n *= 2
        return self.text.decode(ids[-n:])

    @property
    def _longest(self) -> int:
        """The length of the longest text."""
        return max(map(len, self.texts), default=0)

    def _first(self, text: str) -> int | None:
        """Where the first stop text in a text begins; None if there is none."""
        found = [place for place in map(text.find, self.texts) if place >= 0]
        return min(found, default=None)

    def _n_begun(self, text: str) -> int:
        """The number of characters at the end of a text with which a stop text may begin."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            if any(one.startswith(text[-n:]) for one in self.texts):
                return n
        return 0
