"""Measure, and print a table of each suite: python -m benchmarks [SUITE ...] [--write PAGE]."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

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

SUITES: Mapping[str, ModuleType] = {
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
"""Modules with `measure(rounds)`, whose docstrings say what they measure."""


def main() -> None:
    """Print the ratios of the named suites, or of all; with `--write`, put them into a page."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--write", type=Path, metavar="PAGE")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    written = None if arguments.write is None else page.Page(arguments.write)
    print(page.circumstances())
    for name in arguments.suites or SUITES:
        progress(f"suite {name}")
        results = SUITES[name].measure()
        print(f"\n{page.table(results)}", flush=True)
        if written is not None:
            written.add(name, SUITES[name].__doc__, results)


if __name__ == "__main__":
    main()
