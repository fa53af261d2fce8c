"""Linear maps whose inputs and outputs are clamped."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear

BOUNDS = ("input_min", "input_max", "output_min", "output_max")


class ClippedLinear(Linear):
    """clamp(clamp(x, input_min, input_max) weight^T + bias, output_min, output_max), whose bounds
    are buffers."""

    input_min: torch.Tensor
    input_max: torch.Tensor
    output_min: torch.Tensor
    output_max: torch.Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        for name in BOUNDS:
            self.register_buffer(name, torch.empty(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features)."""
        y = super().forward(x.clamp(self.input_min, self.input_max))
        return y.clamp(self.output_min, self.output_max)


def with_bounds(module: nn.Module) -> nn.Module:
    """The module with a `ClippedLinear` in the place of each of its own linear maps."""
    for name, one in list(module.named_children()):
        if isinstance(one, Linear):
            bias = one.bias is not None
            setattr(module, name, ClippedLinear(one.in_features, one.out_features, bias))
    return module
