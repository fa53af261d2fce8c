"""What is trained: a model as this process has it, with its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn, optim

from zoo.spec import ModelSpec


@dataclass(frozen=True)
class Learner:
    """A model under training.

    Args:
        spec: of the model.
        model: what is called; it may be wrapped, or hold a share of the weights.
        optimizer: of its parameters.
        accelerator: the `accelerate.Accelerator` of this process.
    """

    spec: ModelSpec
    model: nn.Module
    optimizer: optim.Optimizer
    accelerator: Any
