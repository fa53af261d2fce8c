"""Arguments of public functions, checked where they come in: whole numbers and paths."""

from __future__ import annotations

import os
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import TypeGuard

from zoo.errors import InputError, ZooError
from zoo.wording import quoted


def is_whole(value: object) -> TypeGuard[Integral]:
    """Whether a value is an integer, of NumPy too, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: object) -> int:
    """Return an argument that is a number of things, as an int.

    Raises:
        InputError: it is no integer, or below 1.
    """
    if not is_whole(value) or int(value) < 1:
        raise InputError(f"`{name}` is an integer of at least 1, not {value!r:.80}")
    return int(value)


def check_seed(value: object) -> int:
    """Return a seed of initial weights, as an int.

    Raises:
        InputError: it is no integer from 0 to 2**64 - 1.
    """
    if not is_whole(value) or not 0 <= int(value) < 2**64:
        raise InputError(f"`seed` is an integer from 0 to 2**64 - 1, not {value!r:.80}")
    return int(value)


def check_path(value: object, expected: str) -> Path:
    """Return an argument as a path.

    Raises:
        TypeError: it is no path; the message begins with what is `expected`.
        ZooError: it is empty, which would be the working directory.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{expected}, not {type(value).__name__}")
    if value == "":
        raise ZooError(f"{expected}, not ''")
    return Path(value)


def check_output(value: object, expected: str) -> Path:
    """Return an argument as a path to write to.

    Raises:
        TypeError: as `check_path`.
        ZooError: as `check_path`; or it holds a NUL, which no path does, or begins with a `~`.
    """
    path = check_path(value, expected)
    if "\0" in str(path):
        raise ZooError(f"{expected}, not {value!r:.80}")
    if home := unexpanded_home(path):
        raise ZooError(home)
    return path


def unexpanded_home(path: Path) -> str | None:
    """Return why a path is refused that begins with `~`, where no folder has this name; None for
    any other path. The folder would be made, and `rm -r ~`, meant for it, would remove the home
    folder."""
    if path.parts[:1] != ("~",) or os.path.lexists("~"):
        return None
    with suppress(RuntimeError):  # a user without a home folder
        path = path.expanduser()
    return (
        "a shell makes the home folder of `~`, but not in quotes or after `=`, and Python does not "
        f"either: write {quoted(path)}"
    )
