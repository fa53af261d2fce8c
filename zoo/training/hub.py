"""Data sets that the `datasets` package loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.errors import Place, TrainingError, placed
from zoo.training.extras import imported
from zoo.training.fields import field, nested, sides_of_row
from zoo.training.split import Words
from zoo.training.tables import Datasets
from zoo.wording import quoted


def read_split(
    data: Datasets, path: str, split: str
) -> Iterator[tuple[str | Words | None, str | Words | None, str | Words]]:
    """The sources, second texts and targets of one split; None for what its examples do not have.
    Text is as the data set has it; white space around the sides of pairs is left out. A label that
    is stored as a number has its name.

    Raises:
        TrainingError: `datasets` is not installed or cannot load it; or a field is missing, or has
            several values.
    """
    datasets = imported("datasets", extra="datasets")
    try:
        rows: Any = datasets.load_dataset(path, revision=data.revision, split=split)
    except Exception as error:  # the package has no base class for users' mistakes
        message = f"`datasets` cannot load the split {quoted(split)} of {quoted(path)}: {error}"
        raise TrainingError(message) from None
    names = _class_names(rows.features, data.target)
    for number, row in enumerate(rows, 1):
        try:
            if data.source is None:
                yield None, None, field(row, data.target, names)
            else:
                sides = sides_of_row(row, data.source, data.target, names)
                yield sides.source, sides.second, sides.target
        except TrainingError as error:
            raise placed(error, Place(f"{path} ({split})", number)) from None


def _class_names(features: Mapping[str, Any], name: str) -> list[str] | None:
    """The names of the labels of a field that is a `ClassLabel`, or a list of such; None of any
    other."""
    try:
        stored = nested(features, name)
    except (KeyError, TypeError):
        return None  # a missing field is told where it is read
    names: list[str] | None = getattr(getattr(stored, "feature", stored), "names", None)
    return names
