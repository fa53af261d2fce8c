"""Measure everything and print the table: python -m benchmarks [startup|build|load|import]..."""

from __future__ import annotations

import os
import platform
import sys

from benchmarks import build, importing, load, startup
from benchmarks.measure import HEAD

SUITES = {
    "startup": startup.measure,
    "build": build.measure,
    "load": load.measure,
    "import": importing.measure,
}


def main(names: list[str]) -> None:
    """Print the ratios of the named suites, or of all."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, medians, in turn\n")
    print(HEAD)
    for name in names or SUITES:
        for ratio in SUITES[name]():
            print(ratio.row(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
