"""Losses that components add to the training loss, as the load balancing of experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def auxiliary_loss(model: nn.Module) -> torch.Tensor:
    """What is to be added to the loss of a model's last call in training; a scalar.

    It is the sum of the `auxiliary_loss` of all modules inside that have one: a scalar of their
    last call, None in evaluation. It is 0 where there are none.
    """
    losses = [loss for loss in _stated(model) if isinstance(loss, torch.Tensor)]
    return torch.stack(losses).sum() if losses else torch.zeros(())


def has_auxiliary_loss(model: nn.Module) -> bool:
    """Whether a module inside has one, so that its calls should tell what is padding."""
    return any(True for _ in _stated(model))


def _stated(model: nn.Module) -> Iterator[object]:
    # A wrapper, as that of `torch.compile`, passes on the attributes of what it wraps.
    for module in model.modules():
        if "auxiliary_loss" in vars(module):
            yield vars(module)["auxiliary_loss"]
