"""Packages that only training needs: those of the extras `train` and `datasets`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from zoo.errors import Problem, TrainingError


def imported(name: str, *, extra: str = "train") -> Any:
    """Import a package of an extra.

    Raises:
        TrainingError: it is not installed; the message says how to.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise TrainingError(
            Problem(
                f"training needs the package `{error.name}`, which is not installed",
                help=f"pip install 'zoo[{extra}]'",
            )
        ) from None
