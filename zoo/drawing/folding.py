"""Fold a sequence of layers: equal neighbours become a run, a repeated pattern a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any

from zoo.drawing.figure import Box, Branch, Cycle, Layer, Run
from zoo.showing.alike import folded, in_one
from zoo.showing.parts import ranges

MAX_FRAMES = 4
"""If there were more frames, each kind of layer is drawn once, with the numbers of its layers. Of
more kinds, those that differ only in numbers are one."""

Span = tuple[int, tuple[int, ...]]
"""The index of a kind of layer, and the numbers of the layers of a run."""


class _DifferentError(Exception):
    """Two parts of a drawing differ in more than numbers."""


def alike(layers: Sequence[Layer]) -> tuple[list[Layer], list[int]]:
    """Return the kinds of layers to be drawn, and for each layer which of them it is: if there are
    more than `MAX_FRAMES`, those that differ only in numbers are one, with ranges of numbers."""
    if len(layers) <= MAX_FRAMES:
        return list(layers), list(range(len(layers)))
    return folded(layers, _layer_in_one)


def _layer_in_one(a: Layer, b: Layer) -> Layer | None:
    try:
        layer: Layer = _in_one(a, b)
    except _DifferentError:
        return None
    return layer


def _in_one(a: Any, b: Any) -> Any:
    """Return two parts of a drawing that differ only in numbers as one, with the path of the first.
    Raises _DifferentError if they differ in more."""
    if isinstance(a, str) and isinstance(b, str) and (told := in_one(a, b)) is not None:
        return told
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_in_one(*both) for both in zip(a, b, strict=True))
    if isinstance(a, Layer | Branch | Box) and type(a) is type(b):
        names = [field.name for field in fields(a) if field.name != "path"]
        return replace(a, **{name: _in_one(getattr(a, name), getattr(b, name)) for name in names})
    if a != b:
        raise _DifferentError
    return a


def fold(kinds: Sequence[int], layers: Sequence[Layer]) -> tuple[Run | Cycle, ...]:
    """Fold the layers of a stack into runs and cycles. Layer i is `layers[kinds[i]]`."""
    spans: list[Span] = [
        (kind, tuple(number for number, _ in group))
        for kind, group in groupby(enumerate(kinds), key=lambda item: item[1])
    ]
    parts = _parts(spans)
    if sum(len(part) for part, _ in parts) > MAX_FRAMES:
        alone = [tuple(i for i, kind in enumerate(kinds) if kind == k) for k in range(len(layers))]
        parts = [([(kind, numbers)], 1) for kind, numbers in enumerate(alone) if numbers]
    several = len(spans) > 1
    return tuple(_folded(part, times, layers, several) for part, times in parts)


def _parts(spans: list[Span]) -> list[tuple[list[Span], int]]:
    """Split spans into single ones and repeated sequences, with the number of repetitions. Spans of
    a repeated sequence hold the layers of all repetitions."""
    parts: list[tuple[list[Span], int]] = []
    at = 0
    while at < len(spans):
        period, times = _longest_cycle(spans, at)
        repeated = [spans[at + i :: period][:times] for i in range(period)]
        merged = [(same[0][0], sum((numbers for _, numbers in same), ())) for same in repeated]
        parts.append((merged, times))
        at += period * times
    return parts


def _longest_cycle(spans: list[Span], at: int) -> tuple[int, int]:
    """Return the period, in spans, and the number of repetitions of the longest cycle that starts
    at `at`; (1, 1) if nothing repeats there."""
    shapes = [(kind, len(numbers)) for kind, numbers in spans]
    best = (1, 1)
    for period in range(2, min(MAX_FRAMES, (len(shapes) - at) // 2) + 1):
        times = 1
        while shapes[at : at + period] == shapes[at + times * period : at + (times + 1) * period]:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _folded(part: list[Span], times: int, layers: Sequence[Layer], several: bool) -> Run | Cycle:
    runs = tuple(
        Run(layers[kind], len(numbers) // times, ranges(numbers) if several else "")
        for kind, numbers in part
    )
    return runs[0] if times == 1 else Cycle(runs, times)
