"""Several images or sounds that a user names, each with its place in messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from zoo.errors import InputError, Place, Problem, placed

Medium = TypeVar("Medium")
Read = TypeVar("Read")


def places_of(media: Sequence[object], kind: str) -> list[Place]:
    """Where each is: the path of its file, or what it is and its number, such as `image 2`."""
    paths = [str(one) if isinstance(one, str | os.PathLike) else "" for one in media]
    return [Place(path or f"{kind} {number}") for number, path in enumerate(paths, 1)]


def read_each(media: Iterable[tuple[Medium, Place]], read: Callable[[Medium], Read]) -> list[Read]:
    """What `read` makes of each at its place. Raises InputError with the problems of all of
    them."""
    found: list[Read] = []
    problems: list[Problem] = []
    for medium, place in media:
        try:
            found.append(read(medium))
        except InputError as error:
            problems += placed(error, place).problems
    if problems:
        raise InputError(problems)
    return found
