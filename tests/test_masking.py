"""The tokens that a masked language model has to predict, against their closed form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from zoo.training.batches import IGNORED, Labelled, n_labels
from zoo.training.masking import Masker
from zoo.training.tables import Masking

SPECIAL, MASK = [0, 1, 2, 9], 9
ORDINARY = [3, 4, 5, 6, 7, 8, *range(10, 40)]


def masker(rate: float = 0.15, masked: float = 0.8, random: float = 0.1) -> Masker:
    table = Masking(rate=rate, masked=masked, random=random)
    return Masker(table, MASK, np.array(SPECIAL), np.array(ORDINARY))


def texts(lengths: Sequence[int], seed: int = 0) -> list[Labelled]:
    """Rows of so many ordinary tokens, each between two special ones."""
    random = np.random.default_rng(seed)
    ids = ([1, *random.choice(ORDINARY, length).tolist(), 2] for length in lengths)
    return [Labelled(row, (IGNORED,) * len(row)) for row in ids]


def within(count: int, n: int, p: float) -> bool:
    """Whether a count of n draws of probability p is within 5 standard deviations."""
    return abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("rate", [0.15, 0.3, 1.0])
def test_how_many_tokens_of_each_text_are_predicted(rate: float) -> None:
    rows = texts([*range(1, 60)] * 3)
    for row, found in zip(rows, masker(rate).drawn(rows, seed=1, step=1), strict=True):
        assert found.n_labels == max(1, round(rate * (len(row.ids) - 2)))
        assert len(found.ids) == len(found.labels) == len(row.ids)
        for read, label, was in zip(found.ids, found.labels, row.ids, strict=True):
            if label == IGNORED:
                assert read == was
            else:
                assert label == was
                assert was not in SPECIAL


@pytest.mark.parametrize(("masked", "random"), [(0.8, 0.1), (1.0, 0.0), (0.3, 0.5)])
def test_what_is_read_in_their_place(masked: float, random: float) -> None:
    rows = texts([40] * 3000)
    found = masker(0.15, masked, random).drawn(rows, seed=1, step=7)
    pairs = [
        (read, label)
        for row in found
        for read, label in zip(row.ids, row.labels, strict=True)
        if label != IGNORED
    ]
    n = len(pairs)
    assert n == 6 * 3000 == n_labels(found)
    assert within(sum(read == MASK for read, _ in pairs), n, masked)
    # A random token may be the one that was there.
    kept = 1 - masked - random + random / len(ORDINARY)
    assert within(sum(read == label for read, label in pairs), n, kept)
    changed = Counter(read for read, label in pairs if read not in (MASK, label))
    assert not set(changed) - set(ORDINARY)
    if random:
        each = random * (1 - 1 / len(ORDINARY)) / len(ORDINARY)
        assert all(within(changed[id_], n, each) for id_ in ORDINARY)


def test_every_subset_is_equally_likely() -> None:
    rows = texts([4] * 6000)
    found = masker(0.5).drawn(rows, seed=3, step=1)
    subsets = Counter(tuple(label != IGNORED for label in row.labels[1:-1]) for row in found)
    assert len(subsets) == 6
    assert all(within(count, 6000, 1 / 6) for count in subsets.values())


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    rows, one = texts([20] * 50), masker()
    drawn = one.drawn(rows, seed=1, step=1)
    assert one.drawn(rows, seed=1, step=1) == drawn
    others = [one.drawn(rows, seed=seed, step=step) for seed, step in ((1, 2), (2, 1), (0, 0))]
    assert all(other != drawn for other in others)
    assert one.drawn([], seed=1, step=1) == []
