"""`generate` and `stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import torch

from zoo.errors import InputError
from zoo.generation.beam import beam_search
from zoo.generation.choosing import Choosing
from zoo.generation.drafts import Drafting
from zoo.generation.ends import Ends, Stop
from zoo.generation.evaluating import evaluating
from zoo.generation.inputs import Given, Inputs
from zoo.generation.methods import Beam, Generated, Greedy, Sampling, with_others
from zoo.generation.prompts import Ids
from zoo.generation.request import Draft, Lookup, Request, check_method
from zoo.generation.search import Step, search
from zoo.generation.speculative import speculative_search
from zoo.sharding.parts import is_fetched
from zoo.transformer import Pixels, Sounds, Transformer

GREEDY = Greedy()


def generate(
    model: Transformer,
    ids: Ids,
    *,
    max_new_tokens: int,
    method: Greedy | Sampling | Beam = GREEDY,
    eos: int | Sequence[int] = (),
    stop: Stop = (),
    start: int | Sequence[int] | None = None,
    mask: torch.Tensor | None = None,
    memory: torch.Tensor | None = None,
    memory_mask: torch.Tensor | None = None,
    images: Pixels | None = None,
    sounds: Sounds | None = None,
    cache: bool = True,
    cuda_graph: bool = False,
    draft: Draft | Lookup | None = None,
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
        stop: sequences of ids that end it too; or a function of the new ids of a sequence that says
            whether it ends.
        start: with an encoder, the ids that each target begins with.
        mask: boolean mask of a tensor of ids or vectors, (batch, length), False at padding.
        memory: for a decoder with a `memory_width`, the states that it attends to,
            (batch, length, width).
        memory_mask: boolean mask of the memory, (batch, length), False at padding.
        images: for a decoder whose text has images in it, all images of all prompts in their order,
            (n_images, channels, height, width), or a single one; for one that takes images of any
            size, also a list of images, each (channels, height, width). In the prompts, the model's
            `image_id` stands once for each state of an image. They are read once. Without images,
            `image_id` is a token like others.
        sounds: likewise, for a decoder whose text has sounds in it, all sounds of all prompts, each
            a `zoo.transformer.Spectrogram`, or a tensor (sounds, frames, bands) of such as fill one
            window each. The model's `sound_id` stands once for each state of a sound.
        cache: whether to use a key-value cache.
        cuda_graph: whether the step from one token to the next is recorded as a CUDA graph, of a
            model on a GPU. The cache then has all of its room in each step.
        draft: what guesses tokens, of which the model checks several in one pass. The tokens stay
            the same, and in sampling their distribution; sequences are generated one by one.

    Returns:
        A result for each prompt or source, in their order; with `n_answers` of the method, it holds
        the `others` for the same prompt.

    Raises:
        InputError: an argument does not fit the model; raised before anything is computed.
        WeightsError: the model's scores are NaN.
    """
    check_method(method, (Greedy, Sampling, Beam))
    request = Request(method, Ends.read(max_new_tokens, eos, stop), start, draft, cache, cuda_graph)
    return generated(model, Given(ids, mask, memory, memory_mask, images, sounds), request)


def stream(
    model: Transformer,
    ids: Ids,
    *,
    max_new_tokens: int,
    method: Greedy | Sampling = GREEDY,
    eos: int | Sequence[int] = (),
    stop: Stop = (),
    start: int | Sequence[int] | None = None,
    mask: torch.Tensor | None = None,
    memory: torch.Tensor | None = None,
    memory_mask: torch.Tensor | None = None,
    images: Pixels | None = None,
    sounds: Sounds | None = None,
    cache: bool = True,
    cuda_graph: bool = False,
    draft: Draft | Lookup | None = None,
) -> Iterator[list[int | None]]:
    """Generate as `generate` does, but yield one token of each sequence at a time.

    The arguments are those of `generate`. Neither beam search, whose tokens are known only at the
    end, nor several answers are supported.

    Returns:
        An iterator that gives the next id of every sequence, None for sequences that have ended.

    Raises:
        InputError: as `generate`, at the call.
        WeightsError: as `generate`, while iterating.
    """
    request = Request(method, Ends.read(max_new_tokens, eos, stop), start, draft, cache, cuda_graph)
    return streamed(model, Given(ids, mask, memory, memory_mask, images, sounds), request)


def generated(model: Transformer, given: Given, request: Request) -> list[Generated]:
    """The results of `generate`. Raises as it does."""
    method, ready = request.method, _Ready.of(model, given, request)
    found: dict[int, Generated] = {}
    with ready.without_gradients(), evaluating(*ready.models):
        if isinstance(method, Beam):
            return ready.beam_search(method)
        for _, ended in ready.search():
            found.update(ended)
    n = method.n_answers
    return [
        with_others([found[number] for number in range(first, first + n)])
        for first in range(0, len(found), n)
    ]


def streamed(model: Transformer, given: Given, request: Request) -> Iterator[list[int | None]]:
    """The result of `stream`. Raises as it does."""
    check_method(request.method, (Greedy, Sampling))
    ready = _Ready.of(model, given, request)
    if request.method.n_answers > 1:
        raise InputError("a stream is of one answer for each prompt: leave `n_answers` out")
    if request.draft is not None and len(ready.inputs.prompt.values) > 1:
        raise InputError("with a `draft`, a stream is of one sequence: they are generated in turn")
    return _steps(ready)


def _steps(ready: _Ready) -> Iterator[list[int | None]]:
    steps = ready.search()
    while True:
        with ready.without_gradients(), evaluating(*ready.models):
            step = next(steps, None)
        if step is None:
            return
        yield step[0]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A generation whose inputs and request fit the model.

    Args:
        model: the model.
        inputs: its inputs.
        drafting: what guesses its tokens, if anything does.
    """

    model: Transformer
    inputs: Inputs
    drafting: Drafting | None

    @classmethod
    def of(cls, model: Transformer, given: Given, request: Request) -> Self:
        """Check them."""
        inputs = Inputs.read(model, given, request)
        return cls(model, inputs, Drafting.read(model, given, inputs))

    @property
    def models(self) -> list[Transformer]:
        """The model, and the one that guesses."""
        return [self.model, *(self.drafting.models if self.drafting else ())]

    def without_gradients(self) -> AbstractContextManager[None]:
        """The mode to compute in. With weights that FSDP2 fetches it is not inference mode, which
        they are computed outside of (`zoo.sharding.model.reach_methods`): the cache could then not
        be written to."""
        fetched = any(map(is_fetched, self.models))
        return torch.no_grad() if fetched else torch.inference_mode()

    def search(self) -> Iterator[Step]:
        """Greedy search and sampling, by steps."""
        request = self.inputs.request
        assert not isinstance(request.method, Beam)  # which has a search of its own
        device = self.inputs.prompt.values.device
        choosing = Choosing.begin(request.method, request.ends, device)
        if self.drafting is None:
            decoding = self.inputs.decoding(self.model)
            yield from search(decoding, self.inputs, choosing)
            decoding.accompany()
        else:
            yield from speculative_search(self.model, self.inputs, self.drafting, choosing)

    def beam_search(self, method: Beam) -> list[Generated]:
        """The best sequences of a beam search."""
        decoding = self.inputs.decoding(self.model)
        found = beam_search(decoding, self.inputs, method)
        decoding.accompany()
        return found
