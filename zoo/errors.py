"""The errors of the zoo, and the problems that they hold.

A `Problem` states one mistake, its place, and how to correct it. A `ZooError` holds every problem
of one pass. Mistakes of users raise no other exceptions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from errno import ENOMEM
from typing import NamedTuple, overload

from zoo.wording import counted, printable, printable_lines

MAX_SHOWN = 50  # problems of one error that are printed; the rest is counted


class Place(NamedTuple):
    """A span of one line of a text. `line` and `column` count from 1; `quote` is that line."""

    file: str
    line: int | None = None
    column: int | None = None
    quote: str | None = None
    width: int = 1

    def __str__(self) -> str:
        parts = [printable(self.file), self.line, self.column]
        return ":".join(str(part) for part in parts if part is not None)

    def excerpt(self) -> list[str]:
        """The quoted line and a caret under the span; empty if the text is not available."""
        if self.quote is None or self.line is None or self.column is None:
            return []
        # Long lines are cut around the span, so that a hostile file cannot flood the terminal.
        start = max(0, self.column - 60)
        before = printable(self.quote[start : self.column - 1])
        after = printable(self.quote[self.column - 1 : start + 120])
        indent = _columns(before)
        carets = max(1, _columns(after[: self.width]))
        return [f"{self.line:>5} | {before}{after}", f"      | {' ' * indent}{'^' * carets}"]


def _columns(text: str) -> int:
    """Return the width of `text` in a terminal: two columns for a wide character, 0 for accents."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


class Problem(NamedTuple):
    """One mistake. `related` holds other places that it involves, such as a first definition."""

    message: str
    place: Place | None = None
    help: str | None = None
    related: tuple[tuple[str, Place], ...] = ()

    def render(self) -> str:
        """Return the problem as text. Names and messages of others in it command no terminal."""
        where = f"{self.place}: " if self.place else ""
        lines = [f"{where}error: {self.message}"]
        if self.place:
            lines += self.place.excerpt()
        for note, place in self.related:
            lines += [f"{place}: note: {note}", *place.excerpt()]
        if self.help:
            lines += [f"      = help: {self.help}"]
        return printable_lines("\n".join(lines))


class ZooError(Exception):
    """A mistake that the user can correct. `problems` holds all problems of one pass; a single one
    may be given as its message, its place and its help."""

    @overload
    def __init__(
        self, problems: str, place: Place | None = None, help: str | None = None
    ) -> None: ...

    @overload
    def __init__(self, problems: Problem | Iterable[Problem]) -> None: ...

    def __init__(
        self,
        problems: Problem | str | Iterable[Problem],
        place: Place | None = None,
        help: str | None = None,
    ) -> None:
        if isinstance(problems, str):
            problems = Problem(problems, place, help)
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(problems)
        shown = [problem.render() for problem in self.problems[:MAX_SHOWN]]
        if left := len(self.problems) - len(shown):
            shown.append(f"and {counted(left, 'more error')}")
        super().__init__("\n".join(shown))

    def __reduce__(self) -> tuple[type[ZooError], tuple[tuple[Problem, ...]]]:
        """Return the arguments for pickles; by default exceptions are restored from their text."""
        return type(self), (self.problems,)


class SpecError(ZooError):
    """A spec that cannot be read, resolved or validated."""


class RegistryError(ZooError):
    """A registry that cannot be read, or a name that is not registered."""


class PluginError(ZooError):
    """A plugin that cannot be imported, or that breaks its contract."""


class WeightsError(ZooError):
    """A weights file that is damaged, of another format, or does not agree with its spec."""


class TrainingError(ZooError):
    """Training cannot begin or continue, because of the data, the tokenizer, or the run."""


class InputError(ZooError):
    """The inputs of a model do not fit it."""


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

    def add_once(self, problem: Problem) -> None:
        """Add a problem with a value, unless this value has one: many components may read the same
        wrong value."""
        if not self.tells_of(problem.place):
            self.add(problem)

    def tells_of(self, place: Place | None) -> bool:
        """Return whether there is a problem at exactly this place."""
        return place in self._places

    def error(self) -> ZooError:
        """Return an error with all problems by file and line: a `PluginError` if a plugin has
        failed, otherwise a `SpecError`."""
        problems = in_order(self._problems)
        return PluginError(problems) if self._plugin_failed else SpecError(problems)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is an interrupt (Ctrl-C), or what became of one.

    An interrupt may come anywhere. Python before 3.12, in the `__set_name__` of a class body, and C
    extensions, when they are imported, raise another error from it.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__cause__ or found.__context__
    return found is not None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error says that there is no more memory: of a GPU, or of the machine."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == ENOMEM:
        return True
    told = str(error).lower()  # of torch, whose own error for a GPU is a RuntimeError too
    return isinstance(error, RuntimeError) and (
        "out of memory" in told or "can't allocate memory" in told or "not enough memory" in told
    )


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """The problems file by file, each file's in the order of its lines."""
    problems = list(problems)
    files = dict.fromkeys(problem.place.file for problem in problems if problem.place)
    order = {file: index for index, file in enumerate(files)}

    def position(problem: Problem) -> tuple[int, int, int]:
        place = problem.place
        return (order[place.file], place.line or 0, place.column or 0) if place else (-1, 0, 0)

    return sorted(problems, key=position)


@contextmanager
def noted(problems: list[Problem]) -> Generator[None]:
    """Add the user's mistakes that the block raises to `problems`, and go on after the block: what
    is checked next may have mistakes too, which are told together."""
    try:
        yield
    except ZooError as error:
        problems += error.problems


@contextmanager
def placing(place: Place | None) -> Generator[None]:
    """Add `place`, if there is one, to the problems without a place of what the block raises."""
    try:
        yield
    except ZooError as error:
        raise placed(error, place) from None


def placed(error: ZooError, place: Place | None) -> ZooError:
    """Return the error with `place` added to each of its problems without a place."""
    return type(error)(problem._replace(place=problem.place or place) for problem in error.problems)
