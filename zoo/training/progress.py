"""Progress of a run: a bar with throughput on a terminal, otherwise a line for each log point."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from zoo.running.perplexity import perplexity_of


class Progress:
    """What is shown of the training loop: nothing, as in all processes but the first."""

    def log(self, record: Mapping[str, float]) -> None:
        """Show one line of the log."""

    def advance(self, step: int) -> None:
        """Show that this many steps are done."""


class Lines(Progress):
    """A line on stderr for each log point."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def log(self, record: Mapping[str, float]) -> None:
        click.echo(_line(record, self.steps), err=True)


class Bar(Progress):
    """A bar on a terminal, with the last log point beside it, and above it a line for each
    measurement on held-out data: these are few, and are to be compared."""

    def __init__(self, bar: Any, task: Any, steps: int) -> None:
        self.bar, self.task, self.steps = bar, task, steps

    def log(self, record: Mapping[str, float]) -> None:
        if "valid_loss" in record:
            self.bar.print(_line(record, self.steps), highlight=False, soft_wrap=True)
        beside = {key: record[key] for key in ("loss", "tokens_per_second")}
        self.bar.update(self.task, told=_progress_text(beside))

    def advance(self, step: int) -> None:
        self.bar.update(self.task, completed=step)


@contextmanager
def progress_of(name: str, done: int, steps: int, *, speaks: bool) -> Iterator[Progress]:
    """Show the progress of a run with `done` of `steps` steps done; nothing unless `speaks`."""
    if not speaks:
        yield Progress()
        return
    if not sys.stderr.isatty():
        yield Lines(steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        yield Bar(bar, bar.add_task(name, total=steps, completed=done, told=""), steps)


def _line(record: Mapping[str, float], steps: int) -> str:
    return f"step {record['step']:,.0f}/{steps:,}  {_progress_text(record)}"


def _progress_text(record: Mapping[str, float]) -> str:
    """One log point as text, with losses in nats per token or text, or squared errors."""
    parts = [f"loss {record['loss']:.4f}"]
    if "valid_loss" in record:
        valid = record["valid_loss"]
        perplexity = perplexity_of(valid)
        shown = f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.1e}"
        told = f"perplexity {shown}"
        if "valid_accuracy" in record:
            told = f"accuracy {record['valid_accuracy']:.4f}"
        if "valid_rmse" in record:
            told = f"RMSE {record['valid_rmse']:.4f}"
        parts.append(f"held out {valid:.4f} ({told})")
    parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
    return "  ".join(parts)
