"""Batches of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BATCH = 32
"""The most texts or images in a batch."""


def cut(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield places in batches."""
    for start in range(0, len(places), BATCH):
        yield places[start : start + BATCH]


def of_equal_length(rows: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Yield the places of rows in batches of one length, so that none is padded."""
    by_length: dict[int, list[int]] = {}
    for place, ids in enumerate(rows):
        by_length.setdefault(len(ids), []).append(place)
    for alike in by_length.values():
        yield from cut(alike)
