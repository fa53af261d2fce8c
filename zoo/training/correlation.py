"""Correlations of numbers that a model makes with those that are right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def pearson(right: Sequence[float], found: Sequence[float]) -> float | None:
    """The covariance over both standard deviations; None if all numbers of a side are equal."""
    one, other = (_centred(np.asarray(side, np.float64)) for side in (right, found))
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if size else None


def spearman(right: Sequence[float], found: Sequence[float]) -> float | None:
    """The Pearson correlation of the ranks, which are means where numbers are equal."""
    return pearson(_ranks(right), _ranks(found))


def _centred(numbers: Numbers) -> Numbers:
    if (numbers == numbers[0]).all():
        return np.zeros_like(numbers)  # whose mean may be rounded
    centred: Numbers = numbers - numbers.mean()
    return centred


def _ranks(numbers: Sequence[float]) -> list[float]:
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means = last - (counts - 1) / 2
    ranks: list[float] = means[place].tolist()
    return ranks
