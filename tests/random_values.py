"""Random values in the tensors of a module: ones in norms and zeros in biases hide mistakes."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def add_noise(module: Module, scale: float = 0.3, *, seed: int = 0) -> Module:
    """Add random numbers to all parameters of a module, which is returned."""
    random = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
        parameter += scale * noise
    return module


@torch.no_grad()
def randomize(module: Module, scale: float = 1.0, *, seed: int = 0) -> Module:
    """Replace all tensors of a module, which is returned: its buffers too, but for integers."""
    random = torch.Generator().manual_seed(seed)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(scale * torch.randn(tensor.shape, generator=random, dtype=tensor.dtype))
    return module
