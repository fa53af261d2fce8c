"""A model in training, as this process has it, with its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from zoo.spec import ModelSpec
from zoo.training.low_rank import factors_of


@dataclass(frozen=True)
class Learner:
    """A model under training.

    Args:
        spec: the spec of the model.
        model: the module to call; it may be wrapped, or hold a shard of the weights.
        optimizer: the optimiser of its parameters.
        accelerator: the `accelerate.Accelerator` of this process.
        frozen: the names of the weights that are not trained.
        adapted: those of them that have low-rank updates.
    """

    spec: ModelSpec
    model: nn.Module
    optimizer: optim.Optimizer
    accelerator: Any
    frozen: frozenset[str]
    adapted: frozenset[str] = frozenset()

    @property
    def changing(self) -> set[str]:
        """The names of all tensors that training changes: weights, buffers that are stored, and the
        factors of low-rank updates."""
        factors = {factor for name in self.adapted for factor in factors_of(name)}
        return (self.spec.tensors.keys() - self.frozen) | factors
