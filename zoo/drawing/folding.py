"""Layers in order, folded: equal neighbours to a run, a pattern that repeats to a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zoo.drawing.figure import Cycle, Layer, Run
from zoo.showing.parts import ranges

MAX_FRAMES = 4
"""With more frames than that, each kind of layer is drawn once, and told by its numbers."""

Span = tuple[int, tuple[int, ...]]
"""The number of a kind of layer, and the layers of one run."""


def fold(kinds: Sequence[int], layers: Sequence[Layer]) -> tuple[Run | Cycle, ...]:
    """The layers of a stack as runs and cycles. `kinds[i]` is the index in `layers` of layer i."""
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
    """Spans, or several that repeat, each with how often; the spans of a repeated part hold the
    layers of all repetitions."""
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
    """The period, in spans, and the number of repetitions of the longest cycle that starts at
    `at`; (1, 1) when nothing repeats there."""
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
