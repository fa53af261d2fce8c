"""The training objective: the cross-entropy of each target token, given those before it and the
source (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from zoo.auxiliary import has_auxiliary_loss
from zoo.training.batches import Row
from zoo.training.tokens import Tokens

IGNORED = -100
"""The label of positions that have no loss: padding."""


class Batch(NamedTuple):
    """Examples as tensors.

    Args:
        source: ids (batch, source length), and their mask, False at padding; None for text.
        inputs: ids (batch, target length): the begin, then the target.
        target_mask: the mask of the inputs, False at padding; None if there is no padding.
        labels: ids (batch, target length): the target, then the end; `IGNORED` at padding.
    """

    source: tuple[torch.Tensor, torch.Tensor] | None
    inputs: torch.Tensor
    target_mask: torch.Tensor | None
    labels: torch.Tensor


def collate(rows: Sequence[Row], tokens: Tokens, device: torch.device) -> Batch:
    """Turn rows into one batch, each side padded to its longest row."""
    source = None
    if rows[0].source is not None:
        sources = [row.source or () for row in rows]
        ids = _padded(sources, tokens.source_pad)
        real = _padded([[1] * len(row) for row in sources], 0).bool()
        source = ids.to(device), real.to(device)
    inputs = _padded([row.target[:-1] for row in rows], tokens.pad)
    labels = _padded([row.target[1:] for row in rows], IGNORED)
    mask = None if bool((labels != IGNORED).all()) else (labels != IGNORED).to(device)
    return Batch(source, inputs.to(device), mask, labels.to(device))


def without_labels(batch: Batch) -> Batch:
    """The batch with all labels ignored, for a process that has no rows of its own."""
    return batch._replace(labels=torch.full_like(batch.labels, IGNORED))


def n_labels(rows: Sequence[Row]) -> int:
    """The number of tokens of these rows that have a loss: the targets and their ends."""
    return sum(len(row.target) - 1 for row in rows)


def summed_loss(model: nn.Module, batch: Batch, *, label_smoothing: float) -> torch.Tensor:
    """The cross-entropy in nats, summed over the tokens of a batch; a scalar, in float32 or wider.

    With label smoothing s, the loss of a token is (1 - s) * -log p(label) + s * mean(-log p(token))
    over all tokens of the vocabulary (Szegedy et al. 2015, arXiv:1512.00567).
    """
    # Padding is at the end, where no token sees it. A mask slows attention down, so the model gets
    # one only if its auxiliary loss counts tokens.
    target_mask = batch.target_mask if has_auxiliary_loss(model) else None
    if batch.source is None:
        logits: Any = model(batch.inputs, target_mask=target_mask)
    else:
        ids, mask = batch.source
        logits = model(ids, batch.inputs, source_mask=mask, target_mask=target_mask)
    return F.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
