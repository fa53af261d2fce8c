"""One example of a recipe's data, whatever its form."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
