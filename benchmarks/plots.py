"""Ratios as bars, and costs as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.growth import Curve
from benchmarks.measure import Ratio

MET, MISSED, PLAIN, TARGET = "#3b75af", "#d1703c", "#9aa5b1", "#222222"
"""The colours of a ratio within its target, of one above it, of one without a target; and of the
target."""

FARTHEST = 3.0
"""Where the axis of ratios ends at the latest. A longer bar is cut off there, with its number: some
limits are a hundred times as fast as anything, and all else would be as thin as a line."""

STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    # so that the same numbers give the same file
    "svg.hashsalt": "zoo",
}


def draw(results: Sequence[Ratio] | Sequence[Curve], path: Path) -> None:
    """Draw the results of a suite into a file, as SVG or PNG according to its suffix."""
    with rc_context(STYLE):
        if isinstance(results[0], Curve):
            figure = _curves([curve for curve in results if isinstance(curve, Curve)])
        else:
            figure = _bars([ratio for ratio in results if isinstance(ratio, Ratio)])
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=110)


def _bars(ratios: Sequence[Ratio]) -> Figure:
    """Draw a bar for each ratio, with its range, under its description; a line at 1, and a mark at
    the target of the ratio."""
    groups = [(what, list(rows)) for what, rows in groupby(ratios, key=lambda ratio: ratio.what)]
    n_lines = len(ratios) + 1.3 * len(groups)
    figure = Figure(figsize=(8, 0.9 + 0.27 * n_lines), layout="constrained")
    axes = figure.subplots()
    right = max(1.1, *(max(ratio.ratio, ratio.target or 0.0) for ratio in ratios))
    right = min(right, FARTHEST)
    ticks: dict[float, str] = {}
    line = 0.0
    for what, rows in groups:
        title = axes.text(0, line, what, weight="bold", va="center")
        title.set_in_layout(False)  # so that a long title takes no room from the bars
        for ratio in rows:
            line += 1
            _bar(axes, line, ratio, right)
            ticks[line] = fill(ratio.against, 36)
        line += 1.3
    axes.axvline(1, color=TARGET, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(line - 0.6, -0.8)
    axes.set_xlim(0, 1.08 * right)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(
        "time of zoo / time of other  (shorter is faster;  ┃ target, orange: missed;  ─ rounds)"
    )
    return figure


def _bar(axes: Any, line: float, ratio: Ratio, right: float) -> None:
    colour = {None: PLAIN, True: MET, False: MISSED}[ratio.met]
    axes.barh(line, ratio.ratio, height=0.7, color=colour)
    rounds = ratio.of_rounds
    axes.plot([min(rounds), max(rounds)], [line, line], color="black", linewidth=0.8, alpha=0.6)
    if ratio.target is not None:
        axes.plot([ratio.target] * 2, [line - 0.45, line + 0.45], color=TARGET, linewidth=2)
    if ratio.ratio > 1.08 * right:
        axes.text(
            1.07 * right, line, f"{ratio.ratio:.2f} ▸", va="center", ha="right", color="white"
        )
    elif ratio.ratio > 0.1 * right:
        axes.text(0.01 * right, line, f"{ratio.ratio:.2f}", va="center", color="white")
    else:  # the bar is shorter than its number
        axes.text(max(rounds) + 0.01 * right, line, f"{ratio.ratio:.2f}", va="center")


def _curves(curves: Sequence[Curve]) -> Figure:
    """Draw a row of panels for each cost, with one panel for each size that grows."""
    costs = list(dict.fromkeys(curve.cost for curve in curves))
    sizes = list(dict.fromkeys(curve.of for curve in curves))
    figure = Figure(figsize=(8, 0.4 + 2.4 * len(costs)), layout="constrained")
    panels = figure.subplots(len(costs), len(sizes), squeeze=False)
    for curve in curves:
        axes = panels[costs.index(curve.cost)][sizes.index(curve.of)]
        medians = [samples.median for samples in curve.measured]
        expected = [medians[0] * count / curve.arithmetic[0] for count in curve.arithmetic]
        axes.plot(curve.sizes, expected, "--", color=TARGET, linewidth=1, label="arithmetic")
        axes.plot(curve.sizes, medians, "o-", color=MET, markersize=4, label="measured")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(curve.sizes, [f"{size:,}" for size in curve.sizes])
        axes.minorticks_off()
        both = [*medians, *expected]
        axes.set_ylim(
            10 ** math.floor(math.log10(min(both))), 10 ** math.ceil(math.log10(max(both)))
        )
        axes.set(xlabel=curve.of, ylabel=f"{curve.cost}, {curve.unit}")
        axes.grid(alpha=0.25)
    panels[0][0].legend(frameon=False)
    return figure
