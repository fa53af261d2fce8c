"""Batches of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from zoo.generation.evaluating import evaluating
from zoo.generation.outputs import check_numbers
from zoo.running.text import Input
from zoo.transformer import Transformer

Item = TypeVar("Item")
BATCH = 32
"""The most texts or images in a batch."""


def cut(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield items in batches."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def outputs_of(
    model: Transformer,
    rows: Sequence[Input],
    call: Callable[[Sequence[Input]], torch.Tensor],
) -> list[torch.Tensor]:
    """The outputs of a model for each of some texts, in batches of one length, so that none is
    padded.

    Args:
        model: the model, in evaluation mode during the calls.
        rows: the texts.
        call: returns the outputs for some of them.

    Raises:
        WeightsError: an output is NaN or +infinity.
    """
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode(), evaluating(model):
        for places in _of_equal_length(rows):
            outputs = call([rows[place] for place in places])
            check_numbers(outputs, model.spec.name)
            found.update(zip(places, outputs, strict=True))
    return [found[place] for place in range(len(rows))]


def _of_equal_length(rows: Sequence[Input]) -> Iterator[Sequence[int]]:
    """Yield the places of rows in batches of one length."""
    by_length: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        by_length.setdefault(len(row.ids), []).append(place)
    for alike in by_length.values():
        yield from cut(alike)
