"""The most memory that a run takes, beside what was in use before it."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter(Protocol):
    """Counts bytes in use."""

    def start(self) -> int:
        """Forget the peak so far; return the bytes in use now."""
        ...

    def peak(self) -> int:
        """The most bytes that were in use since the start."""
        ...


class OfAllocator:
    """Counts what torch has allocated on a device whose allocator keeps count."""

    def __init__(self, device: torch.device) -> None:
        self._of: Any = torch.get_device_module(device)
        self._device = device

    def start(self) -> int:
        self._of.reset_peak_memory_stats(self._device)
        return int(self._of.memory_allocated(self._device))

    def peak(self) -> int:
        return int(self._of.max_memory_allocated(self._device))


class OfProcess:
    """Counts the memory of this process that is in RAM, as Linux does. What the C library keeps for
    later is given back first, since it would hide what a run takes."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it

    def start(self) -> int:
        if self._trim is not None:
            self._trim(0)
        _RESET.write_text("5")
        return self._bytes("VmRSS")

    def peak(self) -> int:
        return self._bytes("VmHWM")

    def _bytes(self, key: str) -> int:
        found = re.search(rf"{key}:\s*(\d+) kB", _STATUS.read_text())
        return 1024 * int(found[1]) if found else 0


def meter_of(device: torch.device) -> Meter | None:
    """Return what counts the memory of a device; None where nothing does: for the CPU on other
    systems than Linux, and where the kernel does not let a process reset its peak."""
    if device.type != "cpu":
        known = hasattr(torch.get_device_module(device), "reset_peak_memory_stats")
        return OfAllocator(device) if known else None
    try:
        meter = OfProcess()
        meter.start()
    except OSError:
        return None
    return meter


def peaks(run: Callable[[], Iterator[None]], meter: Meter | None) -> list[int | None]:
    """Run twice, and return the most bytes in use during the second run up to the end of each of
    its parts, less those in use before both runs. So the weights do not count, but what the first
    run leaves for the second does, such as the state of an optimiser.
    """
    gc.collect()
    before = 0 if meter is None else meter.start()
    for _ in run():
        pass
    if meter is None:
        return [None for _ in run()]
    meter.start()
    return [max(0, meter.peak() - before) for _ in run()]
