"""Batches of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from zoo.generation.evaluating import evaluating
from zoo.generation.outputs import check_numbers
from zoo.transformer import Transformer

BATCH = 32
"""The most texts or images in a batch."""


def cut(places: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield places in batches."""
    for start in range(0, len(places), BATCH):
        yield places[start : start + BATCH]


def outputs_of(
    model: Transformer,
    rows: Sequence[Sequence[int]],
    call: Callable[[Sequence[int]], torch.Tensor],
) -> list[torch.Tensor]:
    """The outputs of a model for each of some rows of ids, in batches of one length, so that none
    is padded.

    Args:
        model: the model, in evaluation mode during the calls.
        rows: the ids.
        call: returns the outputs for the rows at these places.

    Raises:
        WeightsError: an output is NaN or +infinity.
    """
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode(), evaluating(model):
        for places in _of_equal_length(rows):
            outputs = call(places)
            check_numbers(outputs, model.spec.name)
            found.update(zip(places, outputs, strict=True))
    return [found[place] for place in range(len(rows))]


def _of_equal_length(rows: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Yield the places of rows in batches of one length."""
    by_length: dict[int, list[int]] = {}
    for place, ids in enumerate(rows):
        by_length.setdefault(len(ids), []).append(place)
    for alike in by_length.values():
        yield from cut(alike)
