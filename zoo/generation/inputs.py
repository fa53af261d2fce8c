"""The inputs of a generation, checked against the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zoo.devices import input_device
from zoo.errors import InputError, Problem
from zoo.generation.decoding import Decoding, Memory, describe, encode, no_values
from zoo.generation.ends import Ends
from zoo.generation.methods import Method
from zoo.generation.prompts import (
    Ids,
    Rows,
    check_length,
    check_token_mask,
    read_ids,
    read_images,
    read_vectors,
)
from zoo.generation.recorded import RecordedDecoding
from zoo.purpose import Generation
from zoo.transformer import Transformer
from zoo.wording import counted


@dataclass(frozen=True, slots=True)
class Inputs:
    """The checked arguments of `generate`.

    Args:
        prompt: the tokens that each sequence begins with, padded on the left.
        source: the input of the encoder, if the model has one.
        memory: what a decoder without an encoder attends to, if anything.
        ends: when a sequence ends.
    """

    prompt: Rows
    source: Rows | None
    memory: Memory | None
    ends: Ends

    @classmethod
    def read(
        cls,
        model: Transformer,
        ids: Ids,
        method: Method,
        ends: Ends,
        start: int | Sequence[int] | None,
        mask: torch.Tensor | None,
        memory: torch.Tensor | None,
        memory_mask: torch.Tensor | None,
    ) -> Inputs:
        """Check all inputs and move them to the model's device.

        Raises:
            InputError: an input does not fit the model.
        """
        how = describe(model)
        if any(hasattr(tensor, "device_mesh") for tensor in model.parameters()):
            from zoo.sharding.model import reach_methods

            reach_methods(model)  # of a model that `fully_shard` has sharded, and not the zoo
        device = input_device(model)
        if device.type == "meta":
            raise no_values(model.spec.name)
        ends.check(how.target_vocab)
        method.check(how.target_vocab)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        source = None
        if how.has_source:
            source = _source(how, ids, mask, dtype).to(device)
            begin = _begin(start, model.spec.name)
            prompt = read_ids(
                [begin] * source.values.shape[0],
                None,
                what="start",
                vocab=how.target_vocab,
                pad_id=None,
                pad="left",
            )
        else:
            if start is not None:
                raise InputError("`start` is for models with an encoder: the prompt is the start")
            prompt = read_ids(
                ids, mask, what="ids", vocab=how.target_vocab, pad_id=how.pad_id, pad="left"
            )
        longest = prompt.values.shape[1]
        check_length(longest, how.longest, "ids", most_new=ends.max_new_tokens)
        if method.encoder_no_repeat_ngram_size and how.has_source and how.source_vocab is None:
            raise InputError("`encoder_no_repeat_ngram_size` is for sources of tokens")
        attended = _memory(how, memory, memory_mask, prompt.values.shape[0], device, dtype)
        return cls(prompt.to(device), source, attended, ends)

    def source_ids(self, method: Method) -> list[list[int]]:
        """The ids of each source, for a decoder of each prompt; none for a method that does not
        look at them."""
        rows = self.prompt if self.source is None else self.source
        return rows.lists() if method.encoder_no_repeat_ngram_size else [[] for _ in rows.values]

    def row(self, number: int) -> Inputs:
        """The inputs of one sequence alone."""
        source = None if self.source is None else self.source.row(number)
        memory = None if self.memory is None else self.memory.row(number)
        return Inputs(self.prompt.row(number), source, memory, self.ends)

    def decoding(
        self, model: Transformer, *, keep: bool, back: int = 0, record: bool = False
    ) -> Decoding:
        """Run the encoder, if there is one, and return the state in which decoding starts, of
        which the last `back` tokens can be taken back; with `record`, its steps are recorded as a
        CUDA graph.

        Raises:
            InputError: its steps cannot be recorded.
        """
        memory = self.memory if self.source is None else encode(model, self.source)
        # The last new token is never fed to the model.
        capacity = self.prompt.values.shape[1] + self.ends.max_new_tokens - 1
        if record:
            return RecordedDecoding(model, capacity=capacity, memory=memory)
        return Decoding(model, capacity=capacity, memory=memory, keep=keep, back=back)


def _source(how: Generation, ids: Ids, mask: torch.Tensor | None, dtype: torch.dtype) -> Rows:
    if how.image_shape is not None:
        return read_images(ids, mask, what="ids", shape=how.image_shape, dtype=dtype)
    if how.source_vocab is None:
        return read_vectors(ids, mask, what="ids", width=how.source_width, dtype=dtype)
    source = read_ids(
        ids, mask, what="ids", vocab=how.source_vocab, pad_id=how.source_pad_id, pad="right"
    )
    check_length(source.values.shape[1], how.longest_source, "ids")
    return source


def _begin(start: Any, name: str) -> list[int]:
    if start is None:
        raise InputError(
            Problem(
                f"{name} has an encoder: state the ids that each target begins with",
                help="`start` is an id or a list of ids, such as that of the begin-of-sequence",
            )
        )
    try:
        return list(start)
    except TypeError:  # one id of Python, numpy or torch; anything else is refused by `read_ids`
        return [start]


def _memory(
    how: Generation,
    memory: torch.Tensor | None,
    mask: torch.Tensor | None,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Memory | None:
    if memory is None:
        if how.needs_memory:
            raise InputError("the model attends to a memory: state `memory`")
        if mask is not None:
            raise InputError("`memory_mask` hides parts of a `memory`, and there is none")
        return None
    if not how.needs_memory:
        raise InputError("the model attends to no memory that is given")
    rows = read_vectors(memory, None, what="memory", width=how.memory_width, dtype=dtype)
    if rows.values.shape[0] != batch:
        raise InputError(
            f"memory: {counted(rows.values.shape[0], 'row')} for {counted(batch, 'prompt')}"
        )
    if mask is not None:
        mask = check_token_mask(mask, memory.shape[:2], "memory")[:, None, None, :].to(device)
    return Memory(rows.values.to(device), mask)
