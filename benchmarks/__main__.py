"""Measure, and print a table of each suite: python -m benchmarks [SUITE ...] [--write PAGE]."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks import (
    build,
    forward,
    generation,
    growth,
    importing,
    load,
    page,
    startup,
    store,
    training,
)
from benchmarks.measure import progress


class Suite(Protocol):
    """A module whose docstring says what it measures."""

    __doc__: str | None

    def measure(self) -> page.Results: ...


SUITES: Mapping[str, Suite] = {
    "forward": forward,
    "training": training,
    "generation": generation,
    "growth": growth,
    "startup": startup,
    "build": build,
    "load": load,
    "store": store,
    "import": importing,
}


def main() -> None:
    """Print the ratios of the named suites, or of all; with `--write`, put them into a page, in
    the place of their former ones."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--write", type=Path, metavar="PAGE")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    run({name: SUITES[name] for name in arguments.suites or SUITES}, arguments.write)


def run(suites: Mapping[str, Suite], path: Path | None) -> None:
    """Measure suites, print their tables, and write a page of them where there is a path."""
    written = None if path is None else page.Page(path)
    for name, suite in suites.items():
        progress(f"suite {name}")
        where = page.circumstances()
        results = suite.measure()
        print(f"\n{where}\n\n{page.table(results)}", flush=True)
        if written is not None:
            written.add(name, suite.__doc__ or "", where, results)


if __name__ == "__main__":
    main()
