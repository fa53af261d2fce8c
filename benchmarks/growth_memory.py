"""Print how many MB a forward pass takes at its peak:

    python -m benchmarks.growth_memory LAYERS BATCH LENGTH

Linux only: the kernel records the peak of a process, and can reset it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from benchmarks.growth import Size, model, tokens


def megabytes(size: Size) -> float:
    """Return the MB that a second forward pass uses in addition to the memory in use before it."""
    network, ids = model(size.layers), tokens(size)
    with torch.inference_mode():
        network(ids)  # libraries allocate memory that they keep
        Path("/proc/self/clear_refs").write_text("5")
        before = kilobytes("VmRSS")
        network(ids)
        return (kilobytes("VmHWM") - before) / 1e3


def kilobytes(key: str) -> int:
    """Return memory of this process, from a line of its status."""
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    print(megabytes(Size(*map(int, sys.argv[1:]))))
