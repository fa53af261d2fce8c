"""Data sets that the `datasets` package loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.errors import Problem, TrainingError
from zoo.training.extras import imported
from zoo.training.fields import NoFieldError, field, stripped, value
from zoo.training.split import Words
from zoo.training.tables import Datasets, two_of
from zoo.wording import quoted


def read_split(
    data: Datasets, path: str, split: str
) -> Iterator[tuple[str | Words | None, str | Words | None, str | Words]]:
    """The sources, second texts and targets of one split; None for what its examples do not have.
    Text is as the data set has it; white space around the sides of pairs is left out. A label that
    is stored as a number has its name.

    Raises:
        TrainingError: `datasets` is not installed or cannot load it, or a field is missing.
    """
    datasets = imported("datasets", extra="datasets")
    try:
        rows: Any = datasets.load_dataset(path, revision=data.revision, split=split)
    except Exception as error:  # the package has no base class for users' mistakes
        message = f"`datasets` cannot load the split {quoted(split)} of {quoted(path)}: {error}"
        raise TrainingError(message) from None
    stored = rows.features.get(data.target)
    names = getattr(getattr(stored, "feature", stored), "names", None)  # of a `ClassLabel`
    first, second = (None, None) if data.source is None else two_of(data.source)
    for row in rows:
        try:
            target = value(field(row, data.target), names)
            if first is None:
                yield None, None, target
            else:
                other = None if second is None else stripped(value(field(row, second)))
                yield stripped(value(field(row, first))), other, stripped(target)
        except NoFieldError as error:
            message = f"the data set has no field `{error}`"
            raise TrainingError(Problem(message, help=f"it has: {', '.join(row)}")) from None
