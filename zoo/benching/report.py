"""What `zoo bench` prints, as data and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypedDict

from zoo.byte_counts import human_bytes
from zoo.reports.columns import aligned
from zoo.wording import counted


class BenchRow(TypedDict):
    """A phase of a model; the keys are explained at `zoo.bench`."""

    phase: str
    name: str
    parameters: int
    unit: str
    amount: int
    per_second: float | None
    lowest: float | None
    highest: float | None
    speedup: float | None
    flops: int | None
    flops_per_second: float | None
    memory_bytes: int | None
    seconds: list[float]
    error: str | None


class Bench(TypedDict):
    """The measurements of models, and where they were made."""

    device: str
    hardware: str
    threads: int
    load: float | None
    dtype: str
    weights: str | None
    batch: int
    length: int
    new_tokens: int
    rounds: int
    without_images: list[str]
    without_sounds: list[str]
    versions: dict[str, str]
    rows: list[BenchRow]


def bench_text(data: Bench) -> str:
    """Format the measurements: the circumstances, then a table for each phase."""
    rows = data["rows"]
    told = [f"batch {data['batch']:,}"]
    if any(row["unit"] != "images" for row in rows):
        told.append(counted(data["length"], "token"))
    if any(row["phase"] == "decode" for row in rows):
        told.append(f"{data['new_tokens']:,} new")
    place = "" if data["device"] == "cpu" else f"{data['device']}: "
    busy = "" if data["load"] is None else f", load {data['load']:.1f}"
    where = [
        f"{place}{data['hardware']}, {counted(data['threads'], 'thread')}{busy}",
        data["dtype"] if data["weights"] is None else f"{data['dtype']}, {data['weights']} weights",
    ]
    software = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    lines = [
        "; ".join([*where, software]),
        f"{', '.join(told)}; median of {data['rounds']:,} rounds, and their range",
    ]
    for names, what in ((data["without_images"], "images"), (data["without_sounds"], "sounds")):
        if names:
            these = ", ".join(names)
            lines.append(f"the texts of {these} are without {what}, which may stand in them")
    for _, of_phase in groupby(rows, key=lambda row: row["phase"]):
        lines += ["", _table(list(of_phase))]
    return "\n".join(lines)


def _table(rows: Sequence[BenchRow]) -> str:
    """Format the rows of a phase: its name stands above the names of the models."""
    units = {row["unit"] for row in rows}
    each = f"{rows[0]['unit']}/s" if len(units) == 1 else "per second"

    def rate(row: BenchRow) -> str:
        told = _number(row["per_second"])
        return told if len(units) == 1 else f"{told} {row['unit']}"

    columns: list[tuple[str, Callable[[BenchRow], str]]] = [
        ("parameters", lambda row: f"{row['parameters']:,}"),
        (each, lambda row: row["error"] or rate(row)),
        ("range", lambda row: f"{_number(row['lowest'])} … {_number(row['highest'])}"),
        ("speedup", lambda row: "" if row["speedup"] is None else f"{row['speedup']:.2f}x"),
        ("FLOP/s", _rate_of_flops),
        ("memory", _memory),
    ]
    shown = [[rows[0]["phase"], *(row["name"] for row in rows)]]
    for title, cell in columns:
        cells = [
            cell(row) if row["error"] is None or title in (each, "parameters") else ""
            for row in rows
        ]
        if any(cells) and (title != "speedup" or len(rows) > 1):
            shown.append([title, *cells])
    return aligned(shown, [False, *[True] * (len(shown) - 1)])


def _number(value: float | None) -> str:
    """Format a rate with three digits or more."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def _rate_of_flops(row: BenchRow) -> str:
    from zoo.reports.flops import human_flops  # imports torch

    rate = row["flops_per_second"]
    return "" if rate is None else f"{human_flops(round(rate))}/s"


def _memory(row: BenchRow) -> str:
    return "" if row["memory_bytes"] is None else human_bytes(row["memory_bytes"])
