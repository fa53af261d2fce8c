"""Print how many MB a forward pass takes at its peak:

    python -m benchmarks.growth_memory LAYERS BATCH LENGTH

Linux only: the kernel records the peak of a process, and can reset it."""

from __future__ import annotations

import sys

import torch

from benchmarks.growth import Size, model, tokens
from zoo.benching.memory import OfProcess


def megabytes(size: Size) -> float:
    """Return the MB that a second forward pass uses in addition to the memory in use before it."""
    network, ids = model(size.layers), tokens(size)
    with torch.inference_mode():
        network(ids)  # libraries allocate memory that they keep
        meter = OfProcess()
        before = meter.start()
        network(ids)
        return (meter.peak() - before) / 1e6


if __name__ == "__main__":
    print(megabytes(Size(*map(int, sys.argv[1:]))))
