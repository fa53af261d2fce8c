"""What `zoo run` reads from the standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from zoo.errors import InputError, Place

AT_ONCE = 256
"""The number of lines that are read before their results are printed."""

FIRST = "utf-8-sig"
"""The encoding of the beginning of a text, which skips a byte order mark as written by Windows."""

CONVERT = "`iconv -f latin1 -t utf-8` converts a text in Latin-1"


def lines(at_once: int) -> Iterator[tuple[list[Place], list[str]]]:
    """Yield the lines of the standard input with their places, so many at once; typed ones one at a
    time.

    Raises:
        InputError: a line is not UTF-8.
    """
    if sys.stdin is None:  # closed
        return
    at_once = 1 if sys.stdin.isatty() else at_once
    places: list[Place] = []
    found: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        places.append(Place("standard input", number))
        try:
            found.append(line.decode(FIRST if number == 1 else "utf-8").rstrip("\r\n"))
        except UnicodeDecodeError:
            if found:  # the lines before it have their results
                yield places[:-1], found
            message = "this line is not UTF-8"
            raise InputError(message, places[-1], CONVERT) from None
        if len(found) == at_once:
            yield places, found
            places, found = [], []
    if found:
        yield places, found


def text() -> str:
    """Read the whole standard input, without the line end that `echo` adds. Raises InputError if it
    is not UTF-8."""
    try:
        return content().decode(FIRST).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InputError("the standard input is not UTF-8", help=CONVERT) from None


def content() -> bytes:
    """Read the whole standard input; there is nothing if it is closed."""
    return b"" if sys.stdin is None else sys.stdin.buffer.read()
