"""Data sets that the `datasets` package loads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import TrainingError
from zoo.training.data_tables import Datasets
from zoo.training.extras import imported
from zoo.training.fields import lines_of_row, nested
from zoo.training.line import Line, Where
from zoo.wording import PATH, quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats

_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""The readers of `datasets` for single files, by the endings of their names."""


def read_split(data: Datasets, folder: Path, split: str, chats: Chats | None) -> Iterator[Line]:
    """The rows of one split, as the data set has them. A label that is stored as a number has its
    name.

    Args:
        data: names the data set and its fields.
        folder: the folder that a local `path` is relative to.
        split: the name of the split.
        chats: writes chats; None for other data.

    Raises:
        TrainingError: `datasets` is not installed or cannot load it; or as `lines_of_row`.
    """
    rows, name = _load(data, folder, split), name_of(data, folder)
    names = None if data.target is None else _class_names(rows.features, data.target)
    for number, row in enumerate(rows, 1):
        at = Where(Path(f"{name} ({split})"), number, "")
        yield from lines_of_row(row, data, at, chats, names)


def name_of(data: Datasets, folder: Path) -> str:
    """The path of a local data set, or its name on the Hub."""
    local = folder / data.path
    return str(local) if os.path.exists(local) else data.path


def _load(data: Datasets, folder: Path, split: str) -> Any:
    """One split as `datasets` loads it. Raises as `read_split`."""
    datasets = imported("datasets", extra="datasets")
    local, name = folder / data.path, name_of(data, folder)
    # What is named like a reader, such as `text`, reads all files of the working directory.
    path, more = str(local.absolute()) if os.path.exists(local) else data.path, {}
    if os.path.isfile(local):
        path, more = _format_of(local), {"data_files": path}
    elif path in vars(imported("datasets.packaged_modules")).get("_PACKAGED_DATASETS_MODULES", ()):
        message = f"there is no folder and no file {quoted(local)}"
        hint = f"{quoted(path)} is a reader of `datasets`: name the files that it is to read"
        raise TrainingError(message, help=hint)
    try:
        return datasets.load_dataset(path, revision=data.revision, split=split, **more)
    except Exception as error:  # the package has no base class for users' mistakes
        told = f"`datasets` cannot load the split {quoted(split)} of {quoted(name, PATH)}: {error}"
        if (cause := _first_cause(error)) is not error:
            told += f": {cause}"
        raise TrainingError(told) from None


def _format_of(path: Path) -> str:
    """The reader of `datasets` for a file. Raises TrainingError if there is none."""
    found = _FORMATS.get(Path(path.name.removesuffix(".gz")).suffix.lower())
    if found is None:
        hint = f"its name ends in {', '.join(_FORMATS)}; or name the folder that it is in"
        raise TrainingError(f"it is unknown what {quoted(path)} is a file of", help=hint)
    return found


def _first_cause(error: BaseException) -> BaseException:
    """What an error was raised from, at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _class_names(features: Mapping[str, Any], name: str) -> list[str] | None:
    """The names of the labels of a field that is a `ClassLabel`, or a list of such; None of any
    other."""
    try:
        stored = nested(features, name)
    except (KeyError, TypeError):
        return None  # a missing field is told where it is read
    names: list[str] | None = getattr(getattr(stored, "feature", stored), "names", None)
    return names
