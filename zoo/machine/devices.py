"""The device of a model, and what its inputs are there."""

from __future__ import annotations

import torch
from torch import nn

from zoo.errors import ZooError


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
            f"the device `{device}` cannot be used: {reason}",
            help="`cpu`, `cuda`, `cuda:1`, `mps`, or `meta`, which has shapes and no values",
        ) from None
    return found


def input_device(model: nn.Module) -> torch.device:
    """Return the device of the first parameter, where the inputs belong. Between calls, what
    `accelerate` has offloaded is on `meta`; then it is the device where its hooks compute."""
    device = next(model.parameters()).device
    for module in model.modules() if device.type == "meta" else ():
        where = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if where is not None:
            return torch.device(where)
    return device


def input_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype of the first floating-point parameter, which inputs that are no ids get."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def as_input(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return pixels, waveforms or spectrograms where the model is, in its dtype."""
    return x.to(input_device(model), input_dtype(model))
