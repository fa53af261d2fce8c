"""`generate` and `stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from zoo.errors import InputError
from zoo.generation.beam import beam_search
from zoo.generation.ends import Ends
from zoo.generation.evaluating import evaluating
from zoo.generation.inputs import Inputs
from zoo.generation.methods import Beam, Generated, Greedy, Method, Sampling
from zoo.generation.prompts import Ids
from zoo.generation.search import search
from zoo.transformer import Transformer

GREEDY = Greedy()


def generate(
    model: Transformer,
    ids: Ids,
    *,
    max_new_tokens: int,
    method: Greedy | Sampling | Beam = GREEDY,
    eos: int | Sequence[int] = (),
    stop: Sequence[Sequence[int]] = (),
    start: int | Sequence[int] | None = None,
    mask: torch.Tensor | None = None,
    memory: torch.Tensor | None = None,
    memory_mask: torch.Tensor | None = None,
    cache: bool = True,
) -> list[Generated]:
    """Continue prompts with a decoder, or generate targets from sources with an encoder-decoder.

    Args:
        model: a decoder or an encoder-decoder; it is run in evaluation mode.
        ids: the prompts, or the sources: lists of ids of any lengths, or a tensor (batch, length).
            In a tensor, positions where `mask` is False and those with the spec's `pad_id` are
            padding, on either side. An encoder of vectors takes a tensor (batch, length, width),
            and one of images a tensor (batch, channels, height, width), or a single image without
            the batch.
        max_new_tokens: the most tokens that are generated for a sequence.
        method: how tokens are chosen.
        eos: an id, or ids, that end a sequence.
        stop: sequences of ids that end it too.
        start: with an encoder, the ids that each target begins with.
        mask: boolean mask of a tensor of ids or vectors, (batch, length), False at padding.
        memory: for a decoder with a `memory_width`, the states that it attends to,
            (batch, length, width).
        memory_mask: boolean mask of the memory, (batch, length), False at padding.
        cache: whether to use a key-value cache.

    Returns:
        A result for each prompt or source, in their order.

    Raises:
        InputError: an argument does not fit the model; raised before anything is computed.
        WeightsError: the model's scores are NaN.
    """
    check_method(method, (Greedy, Sampling, Beam))
    ends = Ends.read(max_new_tokens, eos, stop)
    inputs = Inputs.read(model, ids, method, ends, start, mask, memory, memory_mask)
    found: dict[int, Generated] = {}
    with torch.inference_mode(), evaluating(model):
        decoding = inputs.decoding(model, keep=cache)
        sources = inputs.source_ids(method)
        if isinstance(method, Beam):
            return beam_search(decoding, inputs.prompt, sources, method, inputs.ends)
        for _, ended in search(decoding, inputs.prompt, sources, method, inputs.ends):
            found.update(ended)
    return [found[number] for number in sorted(found)]


def stream(
    model: Transformer,
    ids: Ids,
    *,
    max_new_tokens: int,
    method: Greedy | Sampling = GREEDY,
    eos: int | Sequence[int] = (),
    stop: Sequence[Sequence[int]] = (),
    start: int | Sequence[int] | None = None,
    mask: torch.Tensor | None = None,
    memory: torch.Tensor | None = None,
    memory_mask: torch.Tensor | None = None,
    cache: bool = True,
) -> Iterator[list[int | None]]:
    """Generate as `generate` does, but yield one token of each sequence at a time.

    The arguments are those of `generate`. Beam search is not supported, as its tokens are known
    only at the end.

    Returns:
        An iterator that gives the next id of every sequence, None for sequences that have ended.

    Raises:
        InputError: as `generate`, at the call.
        WeightsError: as `generate`, while iterating.
    """
    check_method(method, (Greedy, Sampling))
    ends = Ends.read(max_new_tokens, eos, stop)
    inputs = Inputs.read(model, ids, method, ends, start, mask, memory, memory_mask)
    return _steps(model, inputs, method, cache)


def check_method(method: object, kinds: tuple[type[Method], ...]) -> None:
    """Raise InputError if `method` is of none of these kinds."""
    if not isinstance(method, kinds):
        known = ", ".join(f"zoo.{kind.__name__}(...)" for kind in kinds)
        raise InputError(f"`method` is one of {known}, not {method!r:.80}")


@torch.inference_mode()
def _steps(
    model: Transformer, inputs: Inputs, method: Greedy | Sampling, cache: bool
) -> Iterator[list[int | None]]:
    # Unlike a `with` statement, the decorator leaves inference mode between two steps.
    with evaluating(model):
        decoding = inputs.decoding(model, keep=cache)
    steps = search(decoding, inputs.prompt, inputs.source_ids(method), method, inputs.ends)
    while True:
        with evaluating(model):
            step = next(steps, None)
        if step is None:
            return
        yield step[0]
