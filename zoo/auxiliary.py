"""Losses that components add to the training loss, as the load balancing of experts."""

from __future__ import annotations

import torch
from torch import nn


def auxiliary_loss(model: nn.Module) -> torch.Tensor:
    """What is to be added to the loss of a model's last call in training; a scalar.

    It is the sum of the `auxiliary_loss` of all modules inside that have one: a scalar of their
    last call, None in evaluation. It is 0 where there are none.
    """
    # A wrapper, as that of `torch.compile`, passes on the attributes of what it wraps.
    found = (vars(module).get("auxiliary_loss") for module in model.modules())
    losses = [loss for loss in found if isinstance(loss, torch.Tensor)]
    return torch.stack(losses).sum() if losses else torch.zeros(())
