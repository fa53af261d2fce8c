"""One step of training, beside one of a model of another library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zoo.training.optimization import make_optimizer
from zoo.training.optimizer_tables import AdamW


def check_one_step(
    ours: nn.Module,
    theirs: nn.Module,
    our_loss: Callable[[], torch.Tensor],
    their_loss: Callable[[], torch.Tensor],
) -> None:
    """The losses of both are the same, and so are those after a step of AdamW, which are lower."""
    table = AdamW(lr=1e-2, weight_decay=0.0)
    optimizer = make_optimizer(table, ours)
    other = torch.optim.AdamW(
        theirs.parameters(), lr=1e-2, betas=table.betas, eps=table.eps, weight_decay=0.0
    )
    loss, told = our_loss(), their_loss()
    torch.testing.assert_close(loss, told, rtol=1e-12, atol=0)
    loss.backward()
    told.backward()
    optimizer.step()
    other.step()
    with torch.no_grad():
        after, expected = our_loss(), their_loss()
    assert after < loss
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=0)
