"""The inputs of a generation, checked against the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from zoo.errors import InputError
from zoo.generation.decoding import Decoding, Memory, describe, encode
from zoo.generation.outputs import no_values
from zoo.generation.prompts import (
    Ids,
    Rows,
    check_length,
    check_token_mask,
    read_ids,
    read_images,
    read_images_of_any_size,
    read_tiled_images,
    read_vectors,
)
from zoo.generation.recorded import RecordedDecoding
from zoo.generation.request import Request
from zoo.image_inputs import images_of_texts, n_states_of
from zoo.machine.devices import input_device, input_dtype
from zoo.purpose import Generation
from zoo.transformer import Pixels, Transformer
from zoo.wording import counted


class Given(NamedTuple):
    """What a model is given, as the arguments of `generate` of these names; and what its encoder
    has made of `ids` already, if it has."""

    ids: Ids
    mask: torch.Tensor | None = None
    memory: torch.Tensor | None = None
    memory_mask: torch.Tensor | None = None
    images: Pixels | None = None
    encoded: Memory | None = None


class Images(NamedTuple):
    """The images in prompts.

    Args:
        pixels: all images in their order.
        of_rows: how many of them stand in each prompt.
    """

    pixels: Pixels
    of_rows: tuple[int, ...]

    def to(self, device: torch.device) -> Images:
        """The same on another device."""
        if isinstance(self.pixels, torch.Tensor):
            return self._replace(pixels=self.pixels.to(device))
        return self._replace(pixels=tuple(image.to(device) for image in self.pixels))

    def row(self, number: int) -> Images | None:
        """Those of one prompt alone; None if there are none in it."""
        first, n = sum(self.of_rows[:number]), self.of_rows[number]
        return Images(self.pixels[first : first + n], (n,)) if n else None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The checked inputs of a generation, and what is asked of it, which fits the model.

    Args:
        prompt: the tokens that each sequence begins with, padded on the left.
        source: the input of the encoder, if the model has one.
        memory: what the decoder attends to, if that is given: without an encoder, or by what it has
            made of the source already.
        images: those that stand in the prompts, in their order, if there are any.
        request: what is asked.
    """

    prompt: Rows
    source: Rows | None
    memory: Memory | None
    images: Images | None
    request: Request

    @classmethod
    def read(cls, model: Transformer, given: Given, request: Request) -> Inputs:
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
        request.ends.check(how.target_vocab)
        request.method.check(how.target_vocab)
        dtype = input_dtype(model)
        read = partial(read_ids, vocab=how.target_vocab, pad="left")
        source = None
        if how.has_source:
            source = _source(how, given, dtype).to(device)
            begin = _begin(request.start, model.spec.name)
            prompt = read([begin] * source.values.shape[0], what="start")
        else:
            if request.start is not None:
                raise InputError("`start` is for models with an encoder: the prompt is the start")
            prompt = read(given.ids, given.mask, what="ids", pad_id=how.pad_id)
        longest, most_new = prompt.values.shape[1], request.ends.max_new_tokens
        check_length(longest, how.longest, "ids", most_new=most_new)
        looks_back = request.method.encoder_no_repeat_ngram_size
        if looks_back and how.has_source and how.source_vocab is None:
            raise InputError("`encoder_no_repeat_ngram_size` is for sources of tokens")
        attended = given.encoded or _memory(how, given, prompt.values.shape[0], device, dtype)
        images = None
        if given.images is not None:
            images = _images(how, given.images, prompt, model.spec.name, dtype).to(device)
        return cls(prompt.to(device), source, attended, images, request)

    def source_ids(self) -> list[list[int]]:
        """The ids of each source, for a decoder of each prompt; none for a method that does not
        look at them."""
        rows = self.prompt if self.source is None else self.source
        looked_at = self.request.method.encoder_no_repeat_ngram_size
        return rows.lists() if looked_at else [[] for _ in rows.values]

    def row(self, number: int) -> Inputs:
        """The inputs of one sequence alone."""
        source = None if self.source is None else self.source.row(number)
        memory = None if self.memory is None else self.memory.row(number)
        images = None if self.images is None else self.images.row(number)
        prompt = self.prompt.row(number)
        return replace(self, prompt=prompt, source=source, memory=memory, images=images)

    def decoding(self, model: Transformer, *, back: int = 0) -> Decoding:
        """Run the encoder, if there is one, and return the state in which decoding starts, of
        which the last `back` tokens can be taken back.

        Raises:
            InputError: its steps are to be recorded, and cannot be.
        """
        memory = self.memory
        if memory is None and self.source is not None:
            memory = encode(model, self.source)
        elif memory is not None:
            memory = Memory(memory.states, memory.mask)  # decoding leaves rows out
        # The last new token is never fed to the model.
        capacity = self.prompt.values.shape[1] + self.request.ends.max_new_tokens - 1
        images = None if self.images is None else self.images.pixels
        if self.request.cuda_graph:
            return RecordedDecoding(model, capacity=capacity, memory=memory, images=images)
        keep = self.request.cache
        return Decoding(
            model, capacity=capacity, memory=memory, images=images, keep=keep, back=back
        )


def _source(how: Generation, given: Given, dtype: torch.dtype) -> Rows:
    ids, mask = given.ids, given.mask
    if how.image_shape is not None:
        return read_images(ids, mask, what="ids", shape=how.image_shape, dtype=dtype)
    if how.source_vocab is None:
        return read_vectors(ids, mask, what="ids", width=how.source_width, dtype=dtype)
    source = read_ids(ids, mask, what="ids", vocab=how.source_vocab, pad_id=how.source_pad_id)
    check_length(source.values.shape[1], how.longest_source, "ids")
    return source


def _images(how: Generation, given: Pixels, prompt: Rows, name: str, dtype: torch.dtype) -> Images:
    """The images in prompts. Raises InputError if they fit neither the model nor the prompts."""
    stated = how.inserted_images
    if stated is None:
        hint = "a model whose encoder reads images takes them as `ids`" if how.image_shape else None
        raise InputError(f"{name} takes no images in its prompts", help=hint)
    images: Pixels
    if stated.tiling is not None:
        images = read_tiled_images(
            given, what="images", shape=stated.shape, tiling=stated.tiling, dtype=dtype
        )
    elif stated.any_size is None:
        images = read_images(given, None, what="images", shape=stated.shape, dtype=dtype).values
    else:
        channels, cut = stated.shape[0], stated.any_size
        images = read_images_of_any_size(
            given, what="images", channels=channels, cut=cut, dtype=dtype
        )
    n_places = [row.count(stated.image_id) for row in prompt.lists()]
    try:
        of_rows = images_of_texts(n_places, n_states_of(images, stated), stated.image_id)
        return Images(images, of_rows)
    except ValueError as error:
        raise InputError(f"images: {error}") from None


def _begin(start: Any, name: str) -> list[int]:
    if start is None:
        raise InputError(
            f"{name} has an encoder: state the ids that each target begins with",
            help="`start` is an id or a list of ids, such as that of the begin-of-sequence",
        )
    try:
        return list(start)
    except TypeError:  # one id of Python, numpy or torch; anything else is refused by `read_ids`
        return [start]


def _memory(
    how: Generation, given: Given, batch: int, device: torch.device, dtype: torch.dtype
) -> Memory | None:
    memory, mask = given.memory, given.memory_mask
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
