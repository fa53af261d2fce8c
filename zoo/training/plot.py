"""A plot of the losses of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.atomic import new_file
from zoo.training.extras import imported


def plot_losses(history: Sequence[Mapping[str, float]], name: str, what: str, path: Path) -> None:
    """Plot the loss of each log point, the losses on the held-out data, and the learning rate, into
    an SVG file. `what` is the kind of the losses.

    Raises:
        TrainingError: matplotlib is not installed.
        ZooError: the file cannot be written.
    """
    # Not `pyplot`, which keeps state and looks for a display.
    figure = imported("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("valid_loss", "held out")):
        points = [(record["step"], record[key]) for record in history if key in record]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="." * (len(points) < 50))
    axes.set(title=name, xlabel="step", ylabel=what)
    axes.grid(alpha=0.3)
    axes.legend()
    rates = [(record["step"], record["learning_rate"]) for record in history]
    beside = axes.twinx()
    beside.plot(*zip(*rates, strict=True), color="0.6", linestyle=":")
    beside.set_ylim(bottom=0)
    beside.set_ylabel("learning rate (dotted)", color="0.4")
    # Text stays text, and the same history gives the same file.
    style = {"svg.fonttype": "none", "svg.hashsalt": name}
    with imported("matplotlib").rc_context(style), new_file(path) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
