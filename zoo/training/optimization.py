"""Optimisers and learning rates, from the tables of a recipe."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

from torch import nn, optim

from zoo.training.tables import Adam, AdamW, Constant, Cosine, InverseSqrt, Linear, Schedule, Sgd


@singledispatch
def make_optimizer(table: Any, model: nn.Module) -> optim.Optimizer:
    """Make the optimiser of the parameters that a model learns, from a recipe's table."""
    raise TypeError(f"{type(table).__name__} is not a table of an optimiser")


@make_optimizer.register
def _(table: Adam, model: nn.Module) -> optim.Optimizer:
    return optim.Adam(
        _learned(model),
        lr=table.lr,
        betas=table.betas,
        eps=table.eps,
        weight_decay=table.weight_decay,
    )


@make_optimizer.register
def _(table: AdamW, model: nn.Module) -> optim.Optimizer:
    parameters = _learned(model)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": table.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return optim.AdamW(groups, lr=table.lr, betas=table.betas, eps=table.eps)


@make_optimizer.register
def _(table: Sgd, model: nn.Module) -> optim.Optimizer:
    return optim.SGD(
        _learned(model), lr=table.lr, momentum=table.momentum, weight_decay=table.weight_decay
    )


def _learned(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def share_of_peak(schedule: Schedule, step: int, steps: int) -> float:
    """The learning rate of a step as a fraction of the peak.

    The paper's d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) (Vaswani et al. 2017, section
    5.3) is `InverseSqrt` with its peak, at step = warmup, taken out.

    Args:
        schedule: the table of the schedule.
        step: the step, counted from 1.
        steps: the total number of steps.
    """
    if step <= schedule.warmup:
        return step / schedule.warmup
    return _after_warmup(schedule, step, steps)


@singledispatch
def _after_warmup(schedule: Any, step: int, steps: int) -> float:
    raise TypeError(f"{type(schedule).__name__} is not a table of a schedule")


@_after_warmup.register
def _(schedule: Constant, step: int, steps: int) -> float:
    return 1.0


@_after_warmup.register
def _(schedule: InverseSqrt, step: int, steps: int) -> float:
    return math.sqrt(schedule.warmup / step)


@_after_warmup.register
def _(schedule: Linear, step: int, steps: int) -> float:
    left = (steps - step) / (steps - schedule.warmup)
    return schedule.final + (1 - schedule.final) * left


@_after_warmup.register
def _(schedule: Cosine, step: int, steps: int) -> float:
    gone = (step - schedule.warmup) / (steps - schedule.warmup)
    return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * gone)) / 2


def set_learning_rate(optimizer: optim.Optimizer, value: float) -> None:
    """Give every group of parameters this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = value
