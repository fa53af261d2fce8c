"""Batches of examples of similar lengths, in an order that depends only on the seed and the
epoch.

The ids of all data are in memory, in arrays: a list takes nine times as much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

IGNORED = -100
"""The label of positions that have no loss."""


class Row(NamedTuple):
    """One example as ids: those of the source, if there is one, and those of the target with its
    begin and end. Each target id but the first is predicted from those before it. A piece of a
    longer text begins with the last token of the previous piece. Where prompts stand in the target,
    `labels` are its ids, with `IGNORED` for those of the prompts."""

    source: Sequence[int] | None
    target: Sequence[int]
    labels: Sequence[int] | None = None

    @property
    def length(self) -> int:
        """The number of tokens of the longer side, as the model sees them."""
        return max(len(self.target) - 1, len(self.source or ()))

    @property
    def predicted(self) -> Sequence[int]:
        """What is predicted from each id of the target but the last, or `IGNORED`."""
        return (self.target if self.labels is None else self.labels)[1:]

    @property
    def n_labels(self) -> int:
        """The number of tokens that have a loss: those of the target, and its end."""
        return _n_predicted(self.predicted)


class Labelled(NamedTuple):
    """A text, or a pair of texts, as ids, with the special tokens that its tokenizer adds, and what
    is predicted from it: the class, or for each position the token there, or `IGNORED`. `types` are
    the types of the tokens, if not all are 0."""

    ids: Sequence[int]
    labels: Sequence[int]
    types: Sequence[int] | None = None

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.ids)

    @property
    def n_labels(self) -> int:
        """The number of labels that have a loss."""
        return _n_predicted(self.labels)


class Valued(NamedTuple):
    """A text, or a pair of texts, as ids, and a value for each output of the model: the number that
    it is to score, or for each class 1 or 0, whether it is right. `types` are as in `Labelled`."""

    ids: Sequence[int]
    values: Sequence[float]
    types: Sequence[int] | None = None

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.ids)

    @property
    def n_labels(self) -> int:
        """The number of values, each of which has a loss."""
        return len(self.values)


def _n_predicted(labels: Sequence[int]) -> int:
    return len(labels) - labels.count(IGNORED)


ReadRow = Labelled | Valued
"""A row of a model that reads whole texts."""
AnyRow = Row | ReadRow


class Parts(NamedTuple):
    """The three parts of the data as rows of ids."""

    train: Sequence[Any]
    valid: Sequence[Any]
    test: Sequence[Any]


def n_labels(rows: Sequence[AnyRow]) -> int:
    """The number of labels of these rows that have a loss."""
    return sum(row.n_labels for row in rows)


def n_tokens(rows: Sequence[AnyRow]) -> int:
    """The number of tokens that the throughput counts: those of targets that have a loss, and all
    of texts that are read as a whole."""
    return sum(row.n_labels if isinstance(row, Row) else row.length for row in rows)


def batches(
    rows: Sequence[AnyRow], *, tokens: int, seed: int = 0, epoch: int = 0
) -> list[list[int]]:
    """The batches of one epoch, each a list of indices into `rows`; by default, as for what is
    measured, always the same.

    Rows of equal length are shuffled, then cut into batches, and the batches are shuffled. The
    number of batches is the same in every epoch.

    Args:
        rows: the examples.
        tokens: the most tokens of a batch on its longer side, padding included; a longer row is a
            batch of its own.
        seed: the seed of the order.
        epoch: the epoch, counted from 0.
    """
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(len(rows))
    lengths = np.array([rows[index].length for index in shuffled])
    by_length = shuffled[np.argsort(lengths, kind="stable")].tolist()
    found: list[list[int]] = []
    for index in by_length:
        # Rows are sorted by length, so the next row is the longest of its batch.
        if not found or (len(found[-1]) + 1) * rows[index].length > tokens:
            found.append([])
        found[-1].append(index)
    return [found[place] for place in random.permutation(len(found))]


def part(batch: Sequence[AnyRow], index: int, count: int) -> Sequence[AnyRow]:
    """Every `count`-th row of a batch from row `index` on: one part of `count`, which may be
    empty."""
    return batch[index::count]
