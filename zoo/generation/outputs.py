"""Outputs of models that are no numbers, or have no values."""

from __future__ import annotations

import torch

from zoo.errors import InputError, WeightsError


def no_numbers(name: str, what: str) -> WeightsError:
    """The error for `what` a model has computed and is NaN."""
    return WeightsError(
        f"{name}: {what} are not numbers (NaN)",
        help="the weights hold NaN or infinite values, or are too large for the dtype",
    )


def no_values(name: str) -> InputError:
    """The error for a model that is asked for values, and has none."""
    return InputError(
        f"{name} is on the device `meta`, where it has no values",
        help="build or load it on another device",
    )


def check_numbers(outputs: torch.Tensor, name: str) -> None:
    """Raise WeightsError if a model has computed NaN or +infinity, and InputError if it is on the
    meta device. -infinity is what a score may be."""
    if outputs.is_meta:
        raise no_values(name)
    if not bool((outputs < torch.inf).all()):  # nor is NaN
        raise no_numbers(name, "the outputs")
