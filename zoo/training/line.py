"""One line of a recipe's data, whatever its form: its sides, and where it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypeVar

from zoo.errors import Place
from zoo.training.example import Words


class Where(NamedTuple):
    """One line of a file, with its number, counted from 1."""

    path: Path
    number: int
    text: str

    def place(self, column: int = 1) -> Place:
        if not self.text:  # a row of a data set, or an empty line: nothing to quote
            return Place(str(self.path), self.number)
        return Place(str(self.path), self.number, column, self.text)


class Line(NamedTuple):
    """The sides of one line. An empty side is missing; the source is None for text, and the second
    text is None for what is no pair of texts. The column where the target begins is None for JSON,
    which can write the same text in several ways and places. The opening is that of a chat."""

    source: str | Words | None
    target: str | Words
    source_at: Where
    target_at: Where | None = None
    second: str | Words | None = None
    target_column: int | None = None
    opening: str | None = None

    @property
    def sides(self) -> dict[str, str | Words]:
        """The sides that it should have, by their names."""
        sides = {"source": self.source, "second text": self.second, "target": self.target}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of the sides that are lists."""
        return tuple(name for name, side in self.sides.items() if isinstance(side, tuple))

    @property
    def stripped(self) -> Line:
        """The line without the white space around its sides."""
        return self._replace(
            source=_stripped(self.source),
            target=_stripped(self.target),
            second=_stripped(self.second),
        )

    def place_of(self, label: str) -> Place:
        """The place of the target, or of a label in it; of its line, if that cannot be told."""
        at = self.target_at or self.source_at
        if self.target_column is not None:
            return at.place(self.target_column)
        before, *after = at.text.split(f'"{label}"')
        return at.place(len(before) + 2 if len(after) == 1 else 1)


Side = TypeVar("Side", str | Words, str | Words | None)


def _stripped(side: Side) -> Side:
    if isinstance(side, tuple):
        return tuple(one.strip() for one in side)
    return None if side is None else side.strip()
