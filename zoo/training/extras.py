"""Packages that only training needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from zoo.errors import Problem, TrainingError


def extra(name: str) -> Any:
    """Import a package of the extra `train`.

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
                help="pip install 'zoo[train]'",
            )
        ) from None
