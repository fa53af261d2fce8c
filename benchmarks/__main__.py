"""Measure everything and print the table: python -m benchmarks [SUITE ...] [--write PAGE]."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import build, forward, generation, growth, load, startup
from benchmarks.measure import HEAD, Ratio

SUITES: Mapping[str, Callable[[], list[Ratio]]] = {
    "startup": startup.measure,
    "build": build.measure,
    "load": load.measure,
    "forward": forward.measure,
    "generation": generation.measure,
    "growth": growth.measure,
}
PAGE = """\
# Performance

Written by `make bench`. Each row is a time over that of a peer or a limit, which is measured in the
same run, in turn with it; the medians of several rounds. A ratio below 1 is faster than the peer.
Weights are the same where the peer is a model of `transformers`.

"""


def main() -> None:
    """Print the ratios of the named suites, or of all; with `--write`, put them into a page."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--write", type=Path, metavar="PAGE")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    lines = [_circumstances(), "", *HEAD.split("\n")]
    print("\n".join(lines))
    for name in arguments.suites or SUITES:
        for ratio in SUITES[name]():
            lines.append(ratio.row())
            print(lines[-1], flush=True)
    if arguments.write is not None:
        arguments.write.write_text(PAGE + "\n".join(lines) + "\n")


def _circumstances() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads; float32; load when it began "
        f"{os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    main()
