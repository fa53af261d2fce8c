"""Where the models compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from zoo.benching.machine import hardware, wait_for


@dataclass(frozen=True, slots=True)
class Place:
    """A device, and the dtype of the models on it.

    Args:
        device: the device.
        dtype: the dtype.
    """

    device: torch.device
    dtype: torch.dtype

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU, for which weights can be arranged."""
        return self.device.type == "cpu"

    @property
    def records(self) -> bool:
        """Whether steps of generation can be recorded there as CUDA graphs."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has computed what it was asked for."""
        wait_for(self.device)

    def __str__(self) -> str:
        """The device and the dtype, in words."""
        return f"{hardware(self.device)}; {str(self.dtype).removeprefix('torch.')}"


CPU = Place(torch.device("cpu"), torch.float32)


def compile_layers(model: nn.Module) -> None:
    """Compile every layer of a model, whatever its library: what a list of modules holds. Layers
    that are alike share one graph, and so take a fraction of a whole model's time."""
    torch.compiler.reset()  # or layers of earlier models count as variants of these
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if layer is not None and not isinstance(layer, nn.ModuleList):
                    layer.compile()
