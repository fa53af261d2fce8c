"""Data sets that the `datasets` package loads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from zoo.errors import Problem, TrainingError
from zoo.training.extras import imported
from zoo.training.tables import Datasets, two_of
from zoo.wording import quoted


def read_split(
    data: Datasets, path: str, split: str
) -> Iterator[tuple[str | None, str | None, str]]:
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
    names = getattr(rows.features.get(data.target), "names", None)  # of a `ClassLabel`
    first, second = (None, None) if data.source is None else two_of(data.source)
    for row in rows:
        target = _field(row, data.target)
        if names is not None and target.isdigit():
            target = names[int(target)]
        if first is None:
            yield None, None, target
        else:
            other = None if second is None else _field(row, second).strip()
            yield _field(row, first).strip(), other, target.strip()


def _field(row: dict[str, Any], name: str) -> str:
    try:
        value = reduce(lambda inner, key: inner[key], name.split("."), row)
    except (KeyError, TypeError):
        message = f"the data set has no field `{name}`"
        raise TrainingError(Problem(message, help=f"it has: {', '.join(row)}")) from None
    return "" if value is None else str(value)
