"""The elements of a tensor that are in a box of it, and the initial values of such a box alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.distribution import Constant, Distribution, Normal, TruncatedNormal, Uniform
from zoo.fill import fill
from zoo.sharding.reading import _batches
from zoo.sharding.shares import Run, runs

Box = tuple[tuple[int, int, int], ...]


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Draw the length of each axis, and the start and end of the box on it."""
    found: list[tuple[int, int, int]] = []
    for length in draw(st.lists(st.integers(0, 7), max_size=4)):
        start = draw(st.integers(0, length))
        found.append((length, start, draw(st.integers(start, length))))
    return tuple(found)


def runs_in(box: Box) -> list[tuple[int, int]]:
    whole = tuple(length for length, _, _ in box)
    starts = tuple(start for _, start, _ in box)
    return [*map(tuple, runs(whole, starts, tuple(end - start for _, start, end in box)))]


@given(boxes())
def test_the_runs_of_a_box_are_its_elements_in_order(box: Box) -> None:
    whole = np.arange(int(np.prod([length for length, _, _ in box]))).reshape(
        [length for length, _, _ in box]
    )
    expected = whole[tuple(slice(start, end) for _, start, end in box)].ravel().tolist()
    found = runs_in(box)
    assert [i for start, length in found for i in range(start, start + length)] == expected


def test_no_more_runs_than_needed() -> None:
    assert runs_in(((1000, 250, 500), (64, 0, 64))) == [(250 * 64, 250 * 64)]
    assert runs_in(((4, 1, 3), (10, 5, 10))) == [(15, 5), (25, 5)]
    assert runs_in(((4, 1, 3), (10, 5, 5))) == []


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=9), st.integers(1, 9))
def test_what_is_read_at_once_fits_its_room(stated: list[tuple[int, int]], room: int) -> None:
    found = list(_batches([Run(*one) for one in stated], room))
    assert [i for batch in found for start, n in batch for i in range(start, start + n)] == [
        i for start, n in stated for i in range(start, start + n)
    ]
    sizes = [sum(n for _, n in batch) for batch in found]
    assert sizes[:-1] == [room] * (len(sizes) - 1)
    assert all(0 < size <= room for size in sizes)


DISTRIBUTIONS: Sequence[Distribution] = (
    Constant(0.1),
    Uniform(0.5),
    Normal(0.02),
    TruncatedNormal(1.0, 2.0),
)
# Lengths and starts around the 8 words of a block, the steps of 2**16 and the tasks of 2**20.
EDGES = st.sampled_from([0, 1, 7, 8, 9, 2**16 - 3, 2**16, 2**16 + 5, 2**17 + 1, 2**20 - 1, 2**20])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
@given(at=st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=3))
def test_a_part_has_the_values_of_the_whole(
    distribution: Distribution, at: list[tuple[int, int]]
) -> None:
    whole = whole_of(distribution)
    part = torch.empty(sum(length for _, length in at))
    fill({"a": (part, distribution)}, seed=3, runs={"a": at})
    assert torch.equal(part, torch.cat([whole[start : start + length] for start, length in at]))


@cache
def whole_of(distribution: Distribution) -> torch.Tensor:
    whole = torch.empty(2**21)
    fill({"a": (whole, distribution)}, seed=3)
    return whole
