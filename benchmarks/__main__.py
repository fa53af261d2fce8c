"""Measure, and print a table of each suite: python -m benchmarks [SUITE ...] [--write PAGE].

With --device and --dtype, the models are measured there: `--device cuda --dtype bfloat16`."""

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
from benchmarks.place import CPU, Place
from zoo.errors import ZooError
from zoo.machine.devices import usable_device
from zoo.weights.dtypes import usable_dtype


class Suite(Protocol):
    """A module whose docstring says what it measures."""

    __doc__: str | None

    def measure(self) -> page.Results: ...


class ModelSuite(Suite, Protocol):
    """The same, of models that compute at a place."""

    def measure(self, place: Place = CPU) -> page.Results: ...


OF_MODELS: Mapping[str, ModelSuite] = {
    "forward": forward,
    "training": training,
    "generation": generation,
}
SUITES: Mapping[str, Suite] = {
    **OF_MODELS,
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
    told = f"of the suites {', '.join(OF_MODELS)}; the others are measured on CPUs"
    parser.add_argument("--device", default="cpu", help=told)
    parser.add_argument("--dtype", default="float32", help=told)
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    try:
        device, dtype = usable_device(arguments.device), usable_dtype(arguments.dtype)
    except ZooError as error:
        parser.error(str(error))
    place = Place(device, dtype)
    names = arguments.suites or (SUITES if place == CPU else OF_MODELS)
    if place != CPU and (others := set(names) - set(OF_MODELS)):
        parser.error(f"{', '.join(sorted(others))}: measured on CPUs alone, in float32")
    run({name: SUITES[name] for name in names}, arguments.write, place)


def run(suites: Mapping[str, Suite], path: Path | None, place: Place = CPU) -> None:
    """Measure suites, print their tables, and write a page of them where there is a path."""
    written = None if path is None else page.Page(path)
    for name, suite in suites.items():
        progress(f"suite {name}")
        where = page.circumstances(place)
        results = OF_MODELS[name].measure(place) if name in OF_MODELS else suite.measure()
        print(f"\n{where}\n\n{page.table(results)}", flush=True)
        if written is not None:
            written.add(name, suite.__doc__ or "", where, results)


if __name__ == "__main__":
    main()
