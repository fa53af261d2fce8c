"""The processor's name, and whose it is: libraries of matrix products differ by it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux describes each core."""


def described() -> dict[str, str]:
    """Return what Linux tells of the first core; nothing elsewhere, or where it is hidden."""
    fields = {}
    with suppress(OSError), CPUINFO.open() as lines:
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon:
                break  # the next core follows, of which there may be hundreds
            fields[key.strip()] = value.strip()
    return fields


def name() -> str:
    """Return the name of the processor, as Linux reports it; elsewhere its kind, as `arm64`."""
    return described().get("model name", platform.machine())


def is_intel() -> bool:
    """Return whether the processor is Intel's, as Linux or Windows tells."""
    vendor = described().get("vendor_id", os.environ.get("PROCESSOR_IDENTIFIER", ""))
    return "GenuineIntel" in vendor
