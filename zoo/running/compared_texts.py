"""Texts that are compared with images: their ids, and their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from zoo.errors import InputError
from zoo.generation.prompts import check_length, read_ids
from zoo.machine.devices import input_device
from zoo.running.batches import outputs_of
from zoo.running.text import Input, Text
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from zoo.transformer import Comparing


def ids_to_compare(text: Text, written: str, *, spec: ModelSpec, what: str) -> list[int]:
    """The ids of a text, padded if the model reads the padding.

    Args:
        text: turns it into ids.
        written: the text.
        spec: of a model that compares texts with images.
        what: what the text is called in messages.

    Raises:
        InputError: the text is blank or does not fit the model, or its padding is not known.
    """
    # Not only if no ids are made: a tokenizer makes the marks of a beginning and an end of nothing.
    ids = text.encode(written) if written.strip() else []
    if not ids:
        raise InputError(f"the {what} is empty: no tokens are made of it")
    (reading,), comparison = spec.model.called_with, spec.model.comparison
    read_ids([ids], what=what, vocab=reading.vocab)
    check_length(len(ids), reading.longest, what)
    missing = (reading.longest or 0) - len(ids)
    if comparison is None or not comparison.pads or missing <= 0:
        return ids
    if text.pad_id is None:
        raise InputError(
            f"the model reads texts that are padded to {reading.longest} tokens, and its "
            "tokenizer_config.json states no `pad_token`",
            help=f"state it there, or write a {what} as {reading.longest} ids",
        )
    return ids + [text.pad_id] * missing


def vectors_of(transformer: Transformer, rows: Sequence[Input]) -> list[torch.Tensor]:
    """The vector of each text, (width,). Raises WeightsError if one is NaN."""
    model, device = cast("Comparing", transformer), input_device(transformer)

    def call(batch: Sequence[Input]) -> torch.Tensor:
        return model.encode_text(torch.tensor([row.ids for row in batch], device=device))

    return outputs_of(transformer, rows, call)
