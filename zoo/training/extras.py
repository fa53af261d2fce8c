"""The packages of the extras `train` and `datasets`: for training, its scores and its plots."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from zoo.errors import TrainingError

OF_TRAIN = ("accelerate", "matplotlib", "sacrebleu")
"""The packages of the extra `train`."""


def check_installed() -> None:
    """Raise `TrainingError` if a package of `OF_TRAIN` is missing. A run asks before it begins: it
    plots and scores at its end."""
    for name in OF_TRAIN:
        if find_spec(name) is None:
            raise _missing(name, "train")


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
        raise _missing(error.name, extra) from None


def _missing(name: str, extra: str) -> TrainingError:
    message = f"this needs the package `{name}`, which is not installed"
    return TrainingError(message, help=f"pip install 'zoo[{extra}]'")
