"""The progress of a command, as a bar on stderr; nothing is shown if that is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class Bar:
    """A progress bar.

    Args:
        shown: the rich `Progress` that draws it; if None, nothing is drawn.
    """

    def __init__(self, shown: Any = None, description: str = "", total: int | None = None) -> None:
        self._shown = shown
        self._task = None if shown is None else shown.add_task(description, total=total)

    def advance(self, n: int = 1) -> None:
        """Add `n` to the completed part."""
        self._update(advance=n)

    def set_total(self, n: int) -> None:
        """Set the total."""
        self._update(total=n)

    def set_done(self, done: int, total: int) -> None:
        """Set the completed part and the total."""
        self._update(completed=done, total=total)

    def describe(self, description: str) -> None:
        """Set the text before the bar."""
        self._update(description=description)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Take the bar away in a `with` block, which prints."""
        if self._shown is not None:
            self._shown.stop()
        yield
        if self._shown is not None:
            self._shown.start()

    def _update(self, **changes: Any) -> None:
        if self._shown is not None:
            self._shown.update(self._task, **changes)


@contextmanager
def count_bar(
    description: str, total: int | None = None, columns: Callable[[], Iterable[Any]] = tuple
) -> Generator[Bar]:
    """A bar that counts items. The total may be set later. `columns` makes rich's columns, if not
    its usual ones."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*columns(), console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, description, total)


def bytes_bar(description: str, total: int | None = None) -> AbstractContextManager[Bar]:
    """A bar that counts bytes and shows their rate. The total may be set later."""
    return count_bar(description, total, _of_bytes)


def _of_bytes() -> Iterable[Any]:
    from rich import progress

    return (
        progress.TextColumn("{task.description}", markup=False),  # a path may have brackets
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
