"""Optimisers and learning rates, from the tables of a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn, optim

from zoo.layout import MAPS, Role
from zoo.training.optimizer_tables import (
    Adam,
    AdamW,
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Muon,
    Optimizer,
    Schedule,
    Sgd,
    WarmupStableDecay,
)
from zoo.transformer import Transformer

DECAYING: tuple[Role, ...] = (*MAPS, "embedding")
"""The roles of what AdamW decays: no biases, and no constants, as the weights of norms are."""


class Together(optim.Optimizer):
    """Several optimisers, each of parameters of its own, as one.

    Args:
        parts: the optimisers. They share the groups and the state with this one, and are not used
            otherwise.
    """

    def __init__(self, parts: Sequence[optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over groups and state, which are others after loading."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters by their gradients."""
        for part in self.parts:
            part.step()


def make_optimizer(table: Optimizer, model: Transformer) -> optim.Optimizer:
    """Make the optimiser of the parameters that a model learns, from a recipe's table."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    match table:  # `Muon` is an `AdamW`, and this an `Adam`
        case Muon():
            return _muon(table, learned, model)
        case AdamW():
            return _adamw(table, learned, model)
        case Adam():
            return optim.Adam(
                learned,
                lr=table.lr,
                betas=table.betas,
                eps=table.eps,
                weight_decay=table.weight_decay,
            )
        case Sgd():
            return optim.SGD(
                learned, lr=table.lr, momentum=table.momentum, weight_decay=table.weight_decay
            )


def _muon(table: Muon, parameters: Sequence[nn.Parameter], model: Transformer) -> Together:
    of_layers = _matrices_of_layers(model)
    matrices = [p for p in parameters if p in of_layers]
    others = [p for p in parameters if p not in of_layers]
    parts: list[optim.Optimizer] = []
    if matrices:
        parts.append(
            optim.Muon(
                matrices,
                lr=table.lr,
                momentum=table.momentum,
                weight_decay=table.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    if others:
        parts.append(_adamw(table, others, model))
    return Together(parts)


def _adamw(table: AdamW, parameters: Sequence[nn.Parameter], model: Transformer) -> optim.AdamW:
    # By the role and not by the number of dimensions: those of experts or heads are stacked. What
    # the spec does not have, are the two matrices of low-rank updates.
    roles = {name: tensor.role for name, tensor in model.spec.layout.tensors()}
    decaying = {p for name, p in model.named_parameters() if roles.get(name, "weight") in DECAYING}
    groups = [
        {"params": [p for p in parameters if p in decaying], "weight_decay": table.weight_decay},
        {"params": [p for p in parameters if p not in decaying], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return optim.AdamW(groups, lr=table.lr, betas=table.betas, eps=table.eps)


def _matrices_of_layers(model: Transformer) -> set[nn.Parameter]:
    """The matrices of linear maps in the layers of all stacks, by the spec."""
    maps = {
        tensor.name
        for tensor in model.spec.layout.placed()
        if tensor.layer is not None and tensor.role in MAPS and len(tensor.shape) == 2
    }
    return {parameter for name, parameter in model.named_parameters() if name in maps}


def share_of_peak(schedule: Schedule, step: int, steps: int) -> float:
    """The learning rate of a step as a fraction of the peak.

    The paper's d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) (Vaswani et al. 2017, section
    5.3) is `InverseSqrt` with its peak, at step = warmup, taken out. A schedule that falls to
    `final` starts from the peak in its first step after the warm-up and would reach `final` in the
    step after the last one, as the schedulers of PyTorch and `transformers` do: a last step whose
    rate is 0 would be computed in vain.

    Args:
        schedule: the table of the schedule.
        step: the step, counted from 1.
        steps: the total number of steps.
    """
    if step <= schedule.warmup:
        return step / schedule.warmup
    match schedule:
        case Constant():
            return 1.0
        case InverseSqrt():
            return math.sqrt(schedule.warmup / step)
        case Linear():
            left = 1 - _gone(step, steps, steps - schedule.warmup)
        case Cosine():
            left = (1 + math.cos(math.pi * _gone(step, steps, steps - schedule.warmup))) / 2
        case WarmupStableDecay():
            gone = _gone(step, steps, schedule.decay)
            left = 1 - (math.sqrt(gone) if schedule.shape == "sqrt" else gone)
    return schedule.final + (1 - schedule.final) * left


def _gone(step: int, steps: int, length: int) -> float:
    """The share of the last `length` steps that is done before this step."""
    return max(0, length - (steps - step + 1)) / length


def set_learning_rate(optimizer: optim.Optimizer, value: float) -> None:
    """Give every group of parameters this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = value
