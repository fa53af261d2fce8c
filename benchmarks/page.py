"""The page of results: for each suite the software and the machine, a plot and a table."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.growth import Curve
from benchmarks.limits import rates
from benchmarks.measure import Ratio, Samples
from benchmarks.peers import versions
from benchmarks.place import CPU, Place
from benchmarks.plots import draw
from zoo.machine import processor

Results = Sequence[Ratio] | Sequence[Curve]

HEAD = """\
# Performance

Measured by `python -m benchmarks`. The ratio in each row is the time that the zoo takes, divided by
the time of a peer, which is another library, or of a limit, which is what the machine can do at
best. **Below 1 the zoo is faster.** Both are measured in the same run, in turn: one round to warm
up, and then at least five. The ratio is the median of the rounds' ratios; beside it are the least
and the greatest of them. The target is what the ratio should not exceed.
"""
COLUMNS = """\
| what | against | zoo | against | ratio | rounds | target | |
|---|---|---:|---:|---:|---:|---:|---|"""
MORE_COLUMNS = " tokens/s | of the limit |", "---:|---:|"
"""Where tokens are counted: how many the zoo computes, and the share of a limit that it reaches."""


class Page:
    """A page that is written after each suite, so that the results are kept if a later suite fails.
    The sections of suites that are not measured stay as they are.

    Args:
        path: the path of the page, in Markdown, which keeps what is above its sections. Plots go
            to `plots/` beside it, with the page's name in theirs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else HEAD
        self._head, *sections = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)
        self._sections = dict(zip(sections[::2], sections[1::2], strict=True))

    def add(self, name: str, about: str, where: str, results: Results) -> None:
        """Write a section.

        Args:
            name: the name of the suite, also in the plot's file name.
            about: a description of the suite, in Markdown.
            where: the `circumstances` when it began.
            results: the results of the suite.
        """
        image = Path("plots") / f"{self._path.stem}-{name}.svg"
        (self._path.parent / image).parent.mkdir(parents=True, exist_ok=True)
        draw(results, self._path.parent / image)
        title = name.capitalize()
        parts = (about.strip(), where, f"![{title}]({image})", table(results))
        self._sections[title] = "\n\n".join(parts)
        sections = [f"## {one}\n\n{text.strip()}\n" for one, text in self._sections.items()]
        self._path.write_text("\n".join((self._head.rstrip() + "\n", *sections)))


def circumstances(place: Place = CPU) -> str:
    """Return the date, the software and the machine of the measurement, as Markdown; of a device
    other than the CPU also its rates."""
    known = {"torch": version("torch"), **versions()}
    dtype = "; float32" if place == CPU else ""
    found = ", ".join(f"{name} {number}" for name, number in known.items() if number)
    missing = ", ".join(name for name, number in known.items() if number is None)
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}: Python {platform.python_version()}, {found}.",
        *([f"Not installed, and not measured: {missing}."] if missing else []),
        *([] if place.on_cpu else [f"{place}: {rates(place)}."]),
        f"{processor.name()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads{dtype}; load when it began {os.getloadavg()[0]:.1f}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def table(results: Results) -> str:
    """Return the results as a Markdown table."""
    rows = [ratio for one in results for ratio in one.rows()]
    counted = any(ratio.tokens is not None for ratio in rows)
    head, line = COLUMNS.splitlines()
    more, more_line = MORE_COLUMNS if counted else ("", "")
    return "\n".join(
        [head + more, line + more_line, *(row(ratio, counted=counted) for ratio in rows)]
    )


def row(ratio: Ratio, *, counted: bool) -> str:
    """Return a line of a table; `counted` says whether it has columns about tokens."""
    rounds = ratio.of_rounds
    target = "" if ratio.target is None else f"{ratio.target:.2f}"
    reference = ratio.reference
    theirs = reference.median if isinstance(reference, Samples) else reference
    verdict = {None: "", True: "met", False: "missed"}[ratio.met]
    found = (
        f"| {ratio.what} | {ratio.against} "
        f"| {amount(ratio.seconds.median, ratio.unit)} | {amount(theirs, ratio.unit)} "
        f"| **{ratio.ratio:.2f}** | {min(rounds):.2f} … {max(rounds):.2f} | {target} | {verdict} |"
    )
    if not counted:
        return found
    rate = "" if ratio.tokens is None else f"{ratio.tokens / ratio.seconds.median:,.0f}"
    share = f"{100 / ratio.ratio:.3g} %" if ratio.of_limit else ""
    return f"{found} {rate} | {share} |"


def amount(value: float, unit: str) -> str:
    """Return a number with three digits and its unit."""
    whole = 999.5  # what rounds to four digits
    if unit == "s" and 1e3 * value < whole:
        value, unit = 1e3 * value, "ms"
    return f"{value:.3g} {unit}" if value < whole else f"{value:,.0f} {unit}"
