"""Which examples are learned from together: batches of like lengths, in an order that depends on
the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One example as ids: of the source if there is one, and of the target, with its begin and its
    end. Each of the target is predicted from those before it, but for the first. A piece of a
    longer text begins with the last token of the piece before."""

    source: Sequence[int] | None
    target: Sequence[int]

    @property
    def length(self) -> int:
        """Tokens of the longer side, as the model sees them."""
        return max(len(self.target) - 1, len(self.source or ()))


def batches(rows: Sequence[Row], *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of one epoch, each a list of places in `rows`.

    Rows of one length are shuffled, then cut into batches, and the batches shuffled. How many there
    are is the same in every epoch.

    Args:
        rows: the examples.
        tokens: how many a batch holds at most on its longer side, padding included; a row that is
            longer is a batch of its own.
        seed: of the order.
        epoch: counted from 0.
    """
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(len(rows))
    lengths = np.array([rows[index].length for index in shuffled])
    by_length = shuffled[np.argsort(lengths, kind="stable")].tolist()
    found: list[list[int]] = []
    for index in by_length:
        # Sorted, so that the row that comes is the longest.
        if not found or (len(found[-1]) + 1) * rows[index].length > tokens:
            found.append([])
        found[-1].append(index)
    return [found[place] for place in random.permutation(len(found))]


def part(batch: Sequence[Row], index: int, count: int) -> Sequence[Row]:
    """Every `count`-th row of a batch from row `index` on: one part of `count`, which may be
    empty."""
    return batch[index::count]
