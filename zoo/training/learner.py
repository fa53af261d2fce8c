"""A model in training, as this process has it, with its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from zoo.training.low_rank import factors_of
from zoo.training.start import Start


@dataclass(frozen=True)
class Learner:
    """A model under training.

    Args:
        start: the recipe, and the model that it names.
        model: the module to call; it may be wrapped, or hold a shard of the weights.
        optimizer: the optimiser of its parameters.
        accelerator: the `accelerate.Accelerator` of this process.
    """

    start: Start
    model: nn.Module
    optimizer: optim.Optimizer
    accelerator: Any

    @property
    def changing(self) -> set[str]:
        """The names of all tensors that training changes: weights, buffers that are stored, and the
        factors of low-rank updates."""
        start = self.start
        factors = {factor for name in start.adapted for factor in factors_of(name)}
        return (start.spec.tensors.keys() - start.frozen) | factors
