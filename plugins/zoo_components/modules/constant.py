"""Numbers that a pass computes with."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Constant:
    """Numbers as a tensor. To a GPU they are copied once: a copy waits for all that it was asked to
    compute, and cannot be recorded (`zoo.generate` with `cuda_graph`)."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = tuple(numbers)
        self._held: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def on(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The numbers, (n,)."""
        if device.type != "cuda" or torch.compiler.is_compiling():
            return torch.tensor(self.numbers, dtype=dtype, device=device)
        if (dtype, device) not in self._held:
            with torch.inference_mode(mode=False):  # for gradients too, later
                made = torch.tensor(self.numbers, dtype=dtype, device=device)
            self._held[dtype, device] = made
        return self._held[dtype, device]
