"""Batches as tensors, and their loss: a cross-entropy, or for a number the squared error. It is
that of each target token, given those before it and the source (teacher forcing); or that of masked
tokens, of the class, of each class whether it is right, or of the class of each word, given the
text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from zoo.auxiliary import has_auxiliary_loss
from zoo.training.batches import IGNORED
from zoo.weights.dtypes import widened


class Batch(NamedTuple):
    """Examples as tensors.

    Args:
        source: ids (batch, source length), and their mask, False at padding; None for text.
        inputs: ids (batch, target length): the begin, then the target.
        target_mask: the mask of the inputs, False at padding; None if there is no padding.
        labels: ids (batch, target length): the target, then the end; `IGNORED` at padding, and
            where the next token is of a prompt.
    """

    source: tuple[torch.Tensor, torch.Tensor] | None
    inputs: torch.Tensor
    target_mask: torch.Tensor | None
    labels: torch.Tensor


class ReadBatch(NamedTuple):
    """Texts, and what is predicted from them, as tensors.

    Args:
        ids: (batch, length).
        arguments: further arguments of the model by their names, (batch, length): the mask of the
            ids, False at padding, if there is padding; and the types of the tokens, if not all are
            0.
        labels: ids or classes (batch, length), `IGNORED` where nothing is predicted; or classes,
            (batch, 1).
    """

    ids: torch.Tensor
    arguments: Mapping[str, torch.Tensor]
    labels: torch.Tensor


class ValuedBatch(NamedTuple):
    """Texts, and a value for each output of the model, as tensors.

    Args:
        ids, arguments: as in `ReadBatch`.
        labels: the values, (batch, outputs), in float64; NaN where nothing is predicted.
        binary: whether they are 1 for what is right and 0 for what is not, and not numbers.
    """

    ids: torch.Tensor
    arguments: Mapping[str, torch.Tensor]
    labels: torch.Tensor
    binary: bool


AnyBatch = Batch | ReadBatch | ValuedBatch


def without_labels(batch: AnyBatch) -> AnyBatch:
    """The batch with all labels ignored, for a process that has no rows of its own."""
    nothing = float("nan") if isinstance(batch, ValuedBatch) else IGNORED
    return batch._replace(labels=torch.full_like(batch.labels, nothing))


def summed_loss(model: nn.Module, batch: AnyBatch, *, label_smoothing: float) -> torch.Tensor:
    """The cross-entropy in nats, summed over the labels of a batch; a scalar, in float32 or wider.
    For numbers, it is the squared error.

    With label smoothing s, the loss of a token is (1 - s) * -log p(label) + s * mean(-log p(token))
    over all tokens of the vocabulary, and likewise for classes (Szegedy et al. 2015,
    arXiv:1512.00567).
    """
    return _summed(scores(model, batch), batch, label_smoothing)


def _summed(found: torch.Tensor, batch: AnyBatch, label_smoothing: float = 0.0) -> torch.Tensor:
    """The summed loss of scores, (labels, outputs)."""
    if not isinstance(batch, ValuedBatch):
        return F.cross_entropy(
            found,
            batch.labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
    there = ~batch.labels.isnan()
    found, values = found[there], batch.labels[there].to(found.dtype)
    if batch.binary:
        return F.binary_cross_entropy_with_logits(found, values, reduction="sum")
    return F.mse_loss(found, values, reduction="sum")


def loss_and_hits(model: nn.Module, batch: AnyBatch) -> torch.Tensor:
    """The summed loss, without label smoothing, and the number of labels that have the highest
    score; (2,). Of several classes, those are counted whose score is above 0 if they are right, and
    not above it if they are not, which is a probability of 0.5; of numbers, none."""
    found = scores(model, batch)
    loss = _summed(found, batch)
    if isinstance(batch, ValuedBatch):
        right = ((found > 0) == (batch.labels > 0)) & ~batch.labels.isnan()
        hits = right.sum() * batch.binary
    else:
        hits = (found.argmax(-1) == batch.labels.flatten()).sum()
    return torch.stack([loss, hits.to(loss.dtype)])


def scores(model: nn.Module, batch: AnyBatch) -> torch.Tensor:
    """The scores of all tokens or classes for each label of a batch, ignored ones too: (labels,
    tokens or classes), in float32 or wider."""
    logits: torch.Tensor = _logits(model, batch)
    return widened(logits.flatten(0, -2))


def _logits(model: nn.Module, batch: AnyBatch) -> Any:
    if isinstance(batch, ReadBatch | ValuedBatch):
        return model(batch.ids, **batch.arguments)
    # Padding is at the end, where no token sees it. A mask slows attention down, so the model gets
    # one only if its auxiliary loss counts tokens.
    target_mask = batch.target_mask if has_auxiliary_loss(model) else None
    if batch.source is None:
        return model(batch.inputs, target_mask=target_mask)
    ids, mask = batch.source
    return model(ids, batch.inputs, source_mask=mask, target_mask=target_mask)


def with_mask(rows: Sequence[Sequence[int]], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as `padded`, and their mask, False at what is filled."""
    return padded(rows, fill), padded([[1] * len(row) for row in rows], 0).bool()


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Rows as one tensor, each filled up to the longest."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device="cpu")
