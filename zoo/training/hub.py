"""Data sets that the `datasets` package loads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from zoo.errors import Problem, TrainingError
from zoo.training.extras import imported
from zoo.training.tables import Datasets
from zoo.wording import quoted


def read_split(data: Datasets, path: str, split: str) -> Iterator[tuple[str | None, str]]:
    """The sources, None for text, and targets of one split. Text is as the data set has it; white
    space around the sides of pairs is left out. A label that is stored as a number has its name.

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
    for row in rows:
        target = _field(row, data.target)
        if names is not None and target.isdigit():
            target = names[int(target)]
        if data.source is None:
            yield None, target
        else:
            yield _field(row, data.source).strip(), target.strip()


def _class_names(features: Any, name: str) -> list[str] | None:
    """The names of the labels of a field that is a `ClassLabel`; None of any other."""
    try:
        feature = reduce(lambda inner, key: inner[key], name.split("."), features)
    except (KeyError, TypeError):
        return None  # a missing field is told where it is read
    names: list[str] | None = getattr(feature, "names", None)
    return names


def _field(row: dict[str, Any], name: str) -> str:
    try:
        value = reduce(lambda inner, key: inner[key], name.split("."), row)
    except (KeyError, TypeError):
        message = f"the data set has no field `{name}`"
        raise TrainingError(Problem(message, help=f"it has: {', '.join(row)}")) from None
    if isinstance(value, list | dict):
        message = f"the field `{name}` of the data set is not one text or label, but several values"
        fields = ", ".join(f"`{name}.{key}`" for key in value) if isinstance(value, dict) else ""
        raise TrainingError(
            Problem(message, help=f"name one of them: {fields}" if fields else None)
        )
    return "" if value is None else str(value)
