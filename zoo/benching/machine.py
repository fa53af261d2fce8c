"""What was measured on: the processor, the threads, the versions."""

from __future__ import annotations

import os
import platform

import torch

import zoo
from zoo.machine import processor


def hardware(device: torch.device) -> str:
    """Return the name of a device: of a CPU also the vectors that torch uses."""
    if device.type == "cpu":
        return f"{processor.name()}, {torch.backends.cpu.get_cpu_capability()}"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(device) if name is None else str(name(device))


def load_average() -> float | None:
    """Return how many processes computed or waited for it, the mean of the last minute; None where
    the system does not tell. Above 0, others may have disturbed what is measured next."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def versions() -> dict[str, str]:
    """Return the versions of the software that computes."""
    return {
        "zoo": zoo.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def wait_for(device: torch.device) -> None:
    """Wait until a device has computed what was asked of it; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
