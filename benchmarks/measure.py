"""Timing of whole processes, in turn, so that a machine that drifts drifts for all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured time over another of the same run, and the bar that it should keep below, if there
    is one."""

    what: str
    against: str
    seconds: float
    reference: float
    bar: float | None = None

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference

    def row(self) -> str:
        bar = "" if self.bar is None else f"{self.bar:.2f}"
        verdict = "" if self.bar is None else "kept" if self.ratio <= self.bar else "missed"
        return (
            f"| {self.what} | {self.against} | {self.seconds:.3f} s | {self.reference:.3f} s "
            f"| {self.ratio:.2f} | {bar} | {verdict} |"
        )


HEAD = """\
| what | against | median | reference | ratio | bar | |
|---|---|---:|---:|---:|---:|---|"""


def in_turn(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median seconds of each case, run in turn `rounds` times after one round of warming up."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, run in cases.items():
            seconds = run()
            if number > 0:
                found[name].append(seconds)
    return {name: statistics.median(values) for name, values in found.items()}


def process(arguments: Sequence[str]) -> Callable[[], float]:
    """Runs a command and gives its wall time in seconds. It must succeed."""

    def run() -> float:
        start = time.perf_counter()
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=_environment())
        return time.perf_counter() - start

    return run


def printed(code: str) -> list[float]:
    """The numbers that the last line which `code` prints holds: seconds it measured itself."""
    done = subprocess.run(
        python(code), check=True, stdout=subprocess.PIPE, text=True, env=_environment()
    )
    return [float(number) for number in done.stdout.splitlines()[-1].split()]


def _environment() -> dict[str, str]:
    """The variables as a user has them: compiled modules are kept, streams are buffered."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def python(code: str) -> list[str]:
    """The command that runs code in this Python."""
    return [sys.executable, "-c", code]


def zoo_command() -> str:
    """The installed `zoo` beside this Python."""
    return str(Path(sys.executable).parent / "zoo")
