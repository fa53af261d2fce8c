"""What the zoo says when something is wrong: problems with a place, and the errors that carry them.

A `Problem` is one finding: what is wrong, where it stands, and what would be right. A `ZooError`
carries every problem of one pass. Nothing else is raised for a user's mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A span of one line of a text. `line` and `column` count from 1; `quote` is that line."""

    file: str
    line: int | None = None
    column: int | None = None
    quote: str | None = None
    width: int = 1

    def __str__(self) -> str:
        parts = [self.file, self.line, self.column]
        return ":".join(str(part) for part in parts if part is not None)

    def excerpt(self) -> list[str]:
        """The quoted line and a caret under the span; nothing when the text is not at hand."""
        if self.quote is None or self.line is None or self.column is None:
            return []
        # Long lines are cut around the span, so that a hostile file cannot flood the terminal.
        start = max(0, self.column - 60)
        shown = self.quote[start : start + 120].replace("\t", " ")
        width = max(1, min(self.width, len(shown) - (self.column - 1 - start)))
        margin = f"{self.line:>5} | "
        caret = " " * (len(margin) - 2) + "| " + " " * (self.column - 1 - start) + "^" * width
        return [margin + shown, caret]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `related` names other places that take part in it, such as a first definition."""

    message: str
    place: Place | None = None
    help: str | None = None
    related: tuple[tuple[str, Place], ...] = ()

    def render(self) -> str:
        where = f"{self.place}: " if self.place else ""
        lines = [f"{where}error: {self.message}"]
        if self.place:
            lines += self.place.excerpt()
        for note, place in self.related:
            lines += [f"{place}: note: {note}", *place.excerpt()]
        if self.help:
            lines += [f"      = help: {self.help}"]
        return "\n".join(lines)


class ZooError(Exception):
    """A mistake that the user can mend. `problems` holds all that one pass has found."""

    def __init__(self, problems: Problem | str | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(problem.render() for problem in self.problems))


class SpecError(ZooError):
    """A spec that cannot be read, resolved or validated."""


class RegistryError(ZooError):
    """A registry that cannot be read, or a name that it does not hold."""


class PluginError(ZooError):
    """A plugin that cannot be imported, or that breaks its contract."""


class WeightsError(ZooError):
    """A weights file that is damaged, foreign, or not what its spec says."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A help text: the nearest known name, or the whole list when nothing is near and it is short.

    Matching costs the product of the lengths, so very long names are not matched.
    """
    names: Sequence[str] = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) if len(name) <= 100 else []
    if near:
        return f"did you mean `{near[0]}`?"
    if not names:
        return "nothing is allowed here"
    return "allowed here: " + ", ".join(f"`{known}`" for known in names)


def quoted(name: object) -> str:
    """`name` for a message, cut when it is long."""
    text = str(name)
    return f"`{text if len(text) <= 80 else text[:77] + '...'}`"
