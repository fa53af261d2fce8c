"""The training objective: a cross-entropy. It is that of each target token, given those before it
and the source (teacher forcing); or that of masked tokens, or of the class, given the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional as F

from zoo.auxiliary import has_auxiliary_loss
from zoo.training.batches import IGNORED, AnyRow, Labelled, Row
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.tokens import AnyTokens, Tokens


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


class ReadBatch(NamedTuple):
    """Texts, and what is predicted from them, as tensors.

    Args:
        ids: (batch, length).
        arguments: further arguments of the model by their names, (batch, length): the mask of the
            ids, False at padding, if there is padding; and the types of the tokens, if not all are
            0.
        labels: ids (batch, length), `IGNORED` where nothing is predicted; or classes, (batch, 1).
    """

    ids: torch.Tensor
    arguments: Mapping[str, torch.Tensor]
    labels: torch.Tensor


AnyBatch = Batch | ReadBatch


def collate(rows: Sequence[AnyRow], tokens: AnyTokens, device: torch.device) -> AnyBatch:
    """Turn rows into one batch, each side padded to its longest row."""
    if isinstance(tokens, ReaderTokens):
        return _collate_read(cast("Sequence[Labelled]", rows), tokens, device)
    return _collate_pairs(cast("Sequence[Row]", rows), tokens, device)


def _collate_read(
    rows: Sequence[Labelled], tokens: ReaderTokens, device: torch.device
) -> ReadBatch:
    ids = _padded([row.ids for row in rows], tokens.pad)
    real = _padded([[1] * row.length for row in rows], 0).bool()
    arguments: dict[str, torch.Tensor] = {}
    if not bool(real.all()):
        arguments[tokens.reader.mask] = real.to(device)
    if any(row.types for row in rows):
        types = [row.types or [0] * row.length for row in rows]
        arguments["token_types"] = _padded(types, 0).to(device)
    labels = _padded([row.labels for row in rows], IGNORED)
    return ReadBatch(ids.to(device), arguments, labels.to(device))


def _collate_pairs(rows: Sequence[Row], tokens: Tokens, device: torch.device) -> Batch:
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


def without_labels(batch: AnyBatch) -> AnyBatch:
    """The batch with all labels ignored, for a process that has no rows of its own."""
    return batch._replace(labels=torch.full_like(batch.labels, IGNORED))


def summed_loss(model: nn.Module, batch: AnyBatch, *, label_smoothing: float) -> torch.Tensor:
    """The cross-entropy in nats, summed over the labels of a batch; a scalar, in float32 or wider.

    With label smoothing s, the loss of a token is (1 - s) * -log p(label) + s * mean(-log p(token))
    over all tokens of the vocabulary, and likewise for classes (Szegedy et al. 2015,
    arXiv:1512.00567).
    """
    return F.cross_entropy(
        scores(model, batch),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def loss_and_hits(model: nn.Module, batch: AnyBatch) -> torch.Tensor:
    """The summed loss, without label smoothing, and the number of labels that have the highest
    score; (2,)."""
    found, labels = scores(model, batch), batch.labels.flatten()
    loss = F.cross_entropy(found, labels, ignore_index=IGNORED, reduction="sum")
    hits = (found.argmax(-1) == labels).sum()
    return torch.stack([loss, hits.to(loss.dtype)])


def scores(model: nn.Module, batch: AnyBatch) -> torch.Tensor:
    """The scores of all tokens or classes for each label of a batch, ignored ones too: (labels,
    tokens or classes), in float32 or wider."""
    logits: torch.Tensor = _logits(model, batch)
    return logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))


def _logits(model: nn.Module, batch: AnyBatch) -> Any:
    if isinstance(batch, ReadBatch):
        return model(batch.ids, **batch.arguments)
    # Padding is at the end, where no token sees it. A mask slows attention down, so the model gets
    # one only if its auxiliary loss counts tokens.
    target_mask = batch.target_mask if has_auxiliary_loss(model) else None
    if batch.source is None:
        return model(batch.inputs, target_mask=target_mask)
    ids, mask = batch.source
    return model(ids, batch.inputs, source_mask=mask, target_mask=target_mask)


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
