"""The files that come along with a checkpoint, such as its tokenizer."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import Place, Problem, WeightsError
from zoo.files.of_model import link_problem
from zoo.weights.open_file import cannot_read


@dataclass(frozen=True)
class Companion:
    """A file beside the weights."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def read_companions(folder: Path, names: Iterable[str]) -> list[Companion]:
    """Read those of the files `names` that exist in a folder.

    Raises:
        WeightsError: some cannot be read, are no regular files, or are links that lead out of the
            folder.
    """
    found: list[Companion] = []
    problems: list[Problem] = []
    for name in names:
        path = folder / name
        if not os.path.lexists(path):
            continue
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError(0, "not a regular file")
            if problem := link_problem(folder, name):
                problems.append(problem)
                continue
            found.append(Companion(name, path.read_bytes()))
        except OSError as error:
            problems += cannot_read(error, Place(str(path))).problems
    if problems:
        raise WeightsError(problems)
    return found


def write_companions(companions: Iterable[Companion], folder: Path) -> None:
    """Write files into a new folder."""
    for companion in companions:
        path = folder / companion.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(companion.data)
