"""The growth of the cost of a forward pass with length, layers and batch, compared with the growth
of the arithmetic. The model is small, so that any overhead shows. Memory is the memory that the
process uses during the pass, without the weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

import zoo
from benchmarks.measure import Ratio, Samples, in_turn, progress, timed

WIDTH, HEADS, VOCAB = 128, 4, 1000
TARGET = 1.2


class Size(NamedTuple):
    """The sizes of a model and its input."""

    layers: int = 2
    batch: int = 1
    length: int = 128


RANGES: Mapping[str, Sequence[Size]] = {
    # Four sequences: for a single one of 128 tokens, the kernel counts memory too coarsely.
    "length": tuple(Size(batch=4, length=length) for length in (128, 512, 2048, 8192)),
    "layers": tuple(Size(layers=layers, batch=4) for layers in (2, 8, 32, 96)),
    "batch": tuple(Size(batch=batch, length=512) for batch in (1, 4, 16, 64)),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost at growing sizes.

    Args:
        cost: "time" or "memory".
        of: the size that grows.
        sizes: its values.
        measured: seconds or MB at each value.
        arithmetic: the closed form at each value, in any unit.
    """

    cost: str
    of: str
    sizes: tuple[int, ...]
    measured: tuple[Samples, ...]
    arithmetic: tuple[float, ...]

    @property
    def unit(self) -> str:
        return "s" if self.cost == "time" else "MB"

    def rows(self) -> list[Ratio]:
        """Return the ratio, for each pair of successive sizes, of the cost of the larger one to
        that of the smaller one, scaled by the growth of the arithmetic."""
        steps = pairwise(zip(self.sizes, self.measured, self.arithmetic, strict=True))
        return [
            Ratio(
                f"{self.cost}, {self.of} {small} to {large}",
                "growth of the arithmetic",
                found,
                before.times(count / count_before),
                TARGET,
                self.unit,
            )
            for (small, before, count_before), (large, found, count) in steps
        ]


def measure(rounds: int = 5, ranges: Mapping[str, Sequence[Size]] = RANGES) -> list[Curve]:
    """Return a curve of time and one of memory for each size that grows."""
    sizes = list(dict.fromkeys(size for of in ranges.values() for size in of))
    progress(f"growth: {len(sizes)} sizes")
    costs = {
        "time": (seconds(sizes, rounds), operations),
        "memory": (megabytes(sizes, rounds), values_alive),
    }
    return [
        Curve(
            cost,
            of,
            tuple(getattr(size, of) for size in grown),
            tuple(found[size] for size in grown),
            tuple(arithmetic(size) for size in grown),
        )
        for of, grown in ranges.items()
        for cost, (found, arithmetic) in costs.items()
    ]


def operations(size: Size) -> float:
    """Return the number of multiplications of a causal decoder: its linear maps, its attention, and
    its head."""
    maps = 12 * WIDTH**2 * size.length
    attention = WIDTH * size.length**2
    return size.batch * (size.layers * (maps + attention) + WIDTH * VOCAB * size.length)


def values_alive(size: Size) -> float:
    """Return the number of values that must be in memory at once: for each token, those of one
    layer or its logits, without attention scores. It is the same for any number of layers."""
    return float(size.batch * size.length)


def seconds(sizes: Sequence[Size], rounds: int) -> dict[Size, Samples]:
    """Return the seconds of a forward pass at each size."""
    models = {layers: model(layers) for layers in {size.layers for size in sizes}}

    def case(size: Size) -> Callable[[], float]:
        network, ids = models[size.layers], tokens(size)
        return timed(lambda: network(ids))

    with torch.inference_mode():
        times = in_turn({str(size): case(size) for size in sizes}, rounds)
    return dict(zip(sizes, times.values(), strict=True))


def megabytes(sizes: Sequence[Size], rounds: int) -> dict[Size, Samples]:
    """Return the MB that a forward pass uses at each size, each in a process of its own, since a
    pass could reuse memory of the previous one."""
    # Freed memory returns to the system at once, so that the peak of a process is that of the
    # memory in use.
    variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0"}

    def measured(size: Size) -> float:
        command = [sys.executable, "-m", "benchmarks.growth_memory", *map(str, size)]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
        return float(run.stdout)

    return {size: Samples(measured(size) for _ in range(rounds)) for size in sizes}


def model(layers: int) -> zoo.Transformer:
    """A causal decoder."""
    sizes = {"n_layers": layers, "d_model": WIDTH, "n_heads": HEADS, "d_ff": 4 * WIDTH}
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": VOCAB, **sizes}
    return zoo.build({**spec, "position": "rotary"}).eval()


def tokens(size: Size) -> torch.Tensor:
    """Ids, (batch, length)."""
    return torch.arange(size.batch * size.length).view(size.batch, size.length) % VOCAB
