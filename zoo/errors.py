"""What the zoo says when something is wrong: problems with a place, and the errors that carry them.

A `Problem` is one finding: what is wrong, where it stands, and what would be right. A `ZooError`
carries every problem of one pass. Nothing else is raised for a user's mistake.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

MAX_SHOWN = 50  # problems of one error that are printed; the rest is counted


class Place(NamedTuple):
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
        before = printable(self.quote[start : self.column - 1])
        after = printable(self.quote[self.column - 1 : start + 120])
        indent = _columns(before)
        carets = max(1, _columns(after[: self.width]))
        return [f"{self.line:>5} | {before}{after}", f"      | {' ' * indent}{'^' * carets}"]


def printable(text: str) -> str:
    """`text` with a space for each tab, and a sign for each character that is not shown or that
    could command a terminal."""
    return "".join(
        c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _columns(text: str) -> int:
    """The columns that `text` takes in a terminal: two for a wide character, none for an accent."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


class Problem(NamedTuple):
    """One finding. `related` names other places that take part in it, as a first definition."""

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
        shown = [problem.render() for problem in self.problems[:MAX_SHOWN]]
        if left := len(self.problems) - len(shown):
            shown.append(f"and {counted(left, 'more error')}")
        super().__init__("\n".join(shown))

    def __reduce__(self) -> tuple[type[ZooError], tuple[tuple[Problem, ...]]]:
        """What a pickle holds; exceptions are otherwise made anew of their text."""
        return type(self), (self.problems,)


class SpecError(ZooError):
    """A spec that cannot be read, resolved or validated."""


class RegistryError(ZooError):
    """A registry that cannot be read, or a name that it does not hold."""


class PluginError(ZooError):
    """A plugin that cannot be imported, or that breaks its contract."""


class WeightsError(ZooError):
    """A weights file that is damaged, foreign, or not what its spec says."""


class TrainingError(ZooError):
    """Training that cannot begin or go on: its data, its tokenizer, or the run itself."""


class InputError(ZooError):
    """What a model is called with does not fit it."""


class Findings:
    """Collects the problems of one pass over a spec, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self._places: set[Place | None] = set()
        self._plugin_failed = False

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, *problems: Problem) -> None:
        self._problems.update(dict.fromkeys(problems))
        self._places.update(problem.place for problem in problems)

    def add_error(self, error: ZooError) -> None:
        self.add(*error.problems)
        self._plugin_failed |= isinstance(error, PluginError)

    def add_unless_told(self, problem: Problem) -> None:
        """Add a problem of a value, unless one of that very value is known: one wrong value is
        often read by many components."""
        if not self.tells_of(problem.place):
            self.add(problem)

    def tells_of(self, place: Place | None) -> bool:
        """Whether a problem of just this place is known."""
        return place in self._places

    def error(self) -> ZooError:
        """All that was found, file by file in the order of the lines: a `PluginError` if a plugin
        has failed, else a `SpecError`."""
        problems = in_order(self._problems)
        return PluginError(problems) if self._plugin_failed else SpecError(problems)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems file by file, each file's in the order of its lines."""
    problems = list(problems)
    files = dict.fromkeys(problem.place.file for problem in problems if problem.place)
    order = {file: index for index, file in enumerate(files)}

    def position(problem: Problem) -> tuple[int, int, int]:
        place = problem.place
        return (order[place.file], place.line or 0, place.column or 0) if place else (-1, 0, 0)

    return sorted(problems, key=position)


def placed(error: ZooError, place: Place) -> ZooError:
    """The error with `place` for each of its problems that has none of its own."""
    return type(error)(problem._replace(place=problem.place or place) for problem in error.problems)


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """A help text: the nearest known name; when nothing is near, `otherwise`, or the list of names
    unless that is given."""
    if close := nearest(name, known):
        return f"did you mean `{close}`?"
    return allowed(known) if otherwise is None else otherwise


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that means what `name` means elsewhere, or that is most like it, if any is.

    Matching costs the product of the lengths, so very long names are not matched.
    """
    if not name or len(name) > 100:
        return None
    import difflib  # here: a command that finds no mistake does without

    folded = {other.lower(): other for other in sorted(known)}
    name = name.lower()
    if meant(name) in folded:
        return folded[meant(name)]
    found = difflib.get_close_matches(name, folded, n=1, cutoff=0.6)
    if not found and len(name) >= 3:
        found = [other for other in folded if other.startswith(name) or other.endswith(name)]
    return folded[found[0]] if found else None


@cache
def _other_words() -> dict[str, str]:
    """The names that specs use, by those that other libraries and papers use."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("other_words.toml").read_text("utf-8"))


def meant(name: str) -> str:
    """What specs and recipes call what `name` means elsewhere; `name` itself if that is unknown."""
    return _other_words().get(name.lower(), name)


def allowed(known: Iterable[str]) -> str:
    """A help text that lists names."""
    names: Sequence[str] = sorted(set(known))
    if not names:
        return "nothing is allowed here"
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return "allowed here: " + ", ".join(f"`{known}`" for known in names[:40]) + more


def quoted(name: object, most: int | None = None) -> str:
    """`name` for a message, cut when it is longer than `most`: unless given, 80 characters, and 500
    of a path."""
    if most is None:
        most = 500 if isinstance(name, PurePath) else 80
    text = printable(str(name)[: most + 1])
    return f"`{text if len(text) <= most else text[: most - 3] + '...'}`"


def typed(path: object) -> str:
    """`path` as it is typed into a shell, for a command that a help advises."""
    import shlex  # here: a command that finds no mistake does without

    return printable(shlex.quote(str(path)))


def dotted(path: Iterable[str | int]) -> str:
    """The path of a key as TOML writes it: `encoder.block.ffn`."""
    return ".".join(map(str, path))


def counted(number: int, noun: str) -> str:
    """A number of things, as in `1 file` and `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
