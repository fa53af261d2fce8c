"""Plots of losses: those of a run, and those of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.files.atomic import new_file
from zoo.training.extras import imported

_DASHES = ("-", "--", "-.", ":")
"""The lines of runs, when there are more than colours."""
_COLORS = 10


def plot_losses(history: Sequence[Mapping[str, float]], name: str, what: str, path: Path) -> None:
    """Plot the loss of each log point, the losses on the held-out data, and the learning rate, into
    an SVG file. `what` is the kind of the losses.

    Raises:
        TrainingError: matplotlib is not installed.
        ZooError: the file cannot be written.
    """
    figure, axes = _figure(width=7)
    for key, label in (("loss", "training"), ("valid_loss", "held out")):
        if points := _points(history, key):
            axes.plot(*zip(*points, strict=True), label=label, marker="." * (len(points) < 50))
    axes.set(title=name, xlabel="step", ylabel=what)
    axes.grid(alpha=0.3)
    axes.legend()
    rates = _points(history, "learning_rate")
    beside = axes.twinx()
    beside.plot(*zip(*rates, strict=True), color="0.6", linestyle=":")
    beside.set_ylim(bottom=0)
    beside.set_ylabel("learning rate (dotted)", color="0.4")
    _write(figure, name, path)


def plot_runs(histories: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], path: Path) -> None:
    """Plot the losses of runs into an SVG file: those on held-out data if each run has some, and
    otherwise those of training. The logs of runs with one name have one colour. Raises as
    `plot_losses`."""
    of_all = [history for several in histories.values() for history in several]
    held_out = all(_points(history, "valid_loss") for history in of_all)
    figure, axes = _figure(width=9)
    for number, (name, several) in enumerate(histories.items()):
        dashes = _DASHES[number // _COLORS % len(_DASHES)]
        for nth, history in enumerate(several):
            points = _points(history, "valid_loss" if held_out else "loss")
            axes.plot(
                *zip(*points, strict=True),
                label=name if nth == 0 else None,
                color=f"C{number % _COLORS}",
                linestyle=dashes,
                linewidth=1.0,
                marker="." * (len(points) < 50),
            )
    axes.set(xlabel="step", ylabel=f"loss {'on held-out data' if held_out else 'of training'}")
    axes.grid(alpha=0.3)
    if of_all:
        figure.legend(loc="outside right upper")  # over no line of many
    _write(figure, "runs", path)


def _figure(*, width: float) -> tuple[Any, Any]:
    # Not `pyplot`, which keeps state and looks for a display.
    figure = imported("matplotlib.figure").Figure(figsize=(width, 4), layout="constrained")
    return figure, figure.subplots()


def _points(history: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [(record["step"], record[key]) for record in history if key in record]


def _write(figure: Any, salt: str, path: Path) -> None:
    # Text stays text, and the same history gives the same file.
    style = {"svg.fonttype": "none", "svg.hashsalt": salt}
    with imported("matplotlib").rc_context(style), new_file(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
