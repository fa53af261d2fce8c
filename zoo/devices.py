"""The device of a model."""

from __future__ import annotations

import torch

from zoo.errors import Problem, ZooError


def usable_device(device: str | torch.device | None) -> torch.device:
    """Return the device, or the CPU for None.

    Raises:
        ZooError: torch does not know the device, or this machine does not have it.
    """
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise ZooError(
            Problem(
                f"the device `{device}` cannot be used: {reason}",
                help="`cpu`, `cuda`, `cuda:1`, `mps`, or `meta`, which has shapes and no values",
            )
        ) from None
    return found
