"""The elements of a tensor that are in a box of it, and the initial values of such a box alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_specs import TINY
from torch.distributed.device_mesh import DeviceMesh

import zoo
from zoo.distribution import Constant, Distribution, Normal, TruncatedNormal, Uniform
from zoo.fill import fill
from zoo.sharding.mesh import place_in
from zoo.sharding.reading import _batches, _changed, _read
from zoo.sharding.shares import Run, runs
from zoo.weights.reader import open_weights

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


def test_what_is_read_in_batches_is_cast_and_counted_in_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.sharding.reading.STEP", 20)  # five values of float32
    name = "encoder.layers.0.ffn.up_proj.weight"
    model = zoo.build(TINY)
    values = torch.arange(96.0).view(12, 8)
    values[0, 0], values[3, 1], values[11, 7] = 7e4, -7e4, 1e5  # float16 ends at 65,504
    with torch.no_grad():
        model.get_parameter(name).copy_(values)
    zoo.save(model, tmp_path / "wide")
    read = torch.empty(12, 8, dtype=torch.float16)
    with open_weights(tmp_path / "wide") as weights:
        assert _read(weights, name, read) == 3
    assert torch.equal(read, values.half())


@pytest.mark.parametrize("n_readers", [1, 2, 3])
def test_each_tensor_is_hashed_by_one_of_the_readers(n_readers: int, tmp_path: Path) -> None:
    zoo.save(zoo.build(TINY), tmp_path)
    file = tmp_path / "model.safetensors"
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    file.write_bytes(raw[:start] + bytes(byte ^ 1 for byte in raw[start:]))  # none is sound
    with open_weights(file) as weights:
        names = list(weights.header.records)
        told = [_changed(weights, names, number, n_readers) for number in range(n_readers)]
    assert sorted(name for some in told for name in some) == sorted(names)


def test_every_process_has_a_place_of_its_own() -> None:
    """By which they divide what is hashed."""
    coordinates = [(row, column) for row in range(2) for column in range(3)]
    meshes = [SimpleNamespace(shape=(2, 3), get_coordinate=lambda at=at: at) for at in coordinates]
    assert [place_in(cast(DeviceMesh, mesh)) for mesh in meshes] == [0, 1, 2, 3, 4, 5]


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
