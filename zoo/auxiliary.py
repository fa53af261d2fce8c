"""Losses that components add to the training loss, such as the load balancing of experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def auxiliary_loss(model: nn.Module) -> torch.Tensor:
    """Return the scalar to add to the training loss of the model's last call.

    It is the sum of the attribute `auxiliary_loss` over all modules inside that have one: a scalar
    of the module's last call, or None in evaluation. Without any it is 0.
    """
    losses = [loss for loss in _stated(model) if isinstance(loss, torch.Tensor)]
    return torch.stack(losses).sum() if losses else torch.zeros((), device="cpu")


def has_auxiliary_loss(model: nn.Module) -> bool:
    """Return whether a module inside has one; calls of the model should then mark padding."""
    return any(True for _ in _stated(model))


def _stated(model: nn.Module) -> Iterator[object]:
    # Not `hasattr`: wrappers, as of `torch.compile`, forward attributes of the wrapped module.
    for module in model.modules():
        if "auxiliary_loss" in vars(module):
            yield vars(module)["auxiliary_loss"]
