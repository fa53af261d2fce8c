"""A model in training, as this process has it, with its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from zoo.spec import ModelSpec


@dataclass(frozen=True)
class Learner:
    """A model under training.

    Args:
        spec: the spec of the model.
        model: the module to call; it may be wrapped, or hold a shard of the weights.
        optimizer: the optimiser of its parameters.
        accelerator: the `accelerate.Accelerator` of this process.
        frozen: the names of the weights that are not trained.
    """

    spec: ModelSpec
    model: nn.Module
    optimizer: optim.Optimizer
    accelerator: Any
    frozen: frozenset[str]
