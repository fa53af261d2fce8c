"""`generate` and `stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from zoo.errors import InputError, Problem
from zoo.generation.beam import beam_search
from zoo.generation.choosing import Choosing
from zoo.generation.decoding import Decoding
from zoo.generation.drafts import Draft, Drafting, Lookup
from zoo.generation.ends import Ends, Stop
from zoo.generation.evaluating import evaluating
from zoo.generation.inputs import Inputs
from zoo.generation.methods import Beam, Generated, Greedy, Method, Sampling, with_others
from zoo.generation.prompts import Ids
from zoo.generation.search import Step, search
from zoo.generation.speculative import speculative_search
from zoo.transformer import Transformer

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
            whether it ends, which beam search does not take.
        start: with an encoder, the ids that each target begins with.
        mask: boolean mask of a tensor of ids or vectors, (batch, length), False at padding.
        memory: for a decoder with a `memory_width`, the states that it attends to,
            (batch, length, width).
        memory_mask: boolean mask of the memory, (batch, length), False at padding.
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
    ends = Ends.read(max_new_tokens, eos, stop)
    if ends.judge is not None and isinstance(method, Beam):
        raise not_for_beams("a function as `stop` is")
    ready = _Ready.of(
        model,
        method,
        draft=draft,
        cache=cache,
        cuda_graph=cuda_graph,
        ids=ids,
        ends=ends,
        start=start,
        mask=mask,
        memory=memory,
        memory_mask=memory_mask,
    )
    found: dict[int, Generated] = {}
    with torch.inference_mode(), evaluating(*ready.models):
        if isinstance(method, Beam):
            return ready.beam_search(method)
        for _, ended in ready.search(method):
            found.update(ended)
    n = method.n_answers
    return [
        with_others([found[number] for number in range(first, first + n)])
        for first in range(0, len(found), n)
    ]


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
    check_method(method, (Greedy, Sampling))
    ends = Ends.read(max_new_tokens, eos, stop)
    ready = _Ready.of(
        model,
        method,
        draft=draft,
        cache=cache,
        cuda_graph=cuda_graph,
        ids=ids,
        ends=ends,
        start=start,
        mask=mask,
        memory=memory,
        memory_mask=memory_mask,
    )
    if method.n_answers > 1:
        raise InputError("a stream is of one answer for each prompt: leave `n_answers` out")
    if ready.drafting is not None and len(ready.inputs.prompt.values) > 1:
        raise InputError("with a `draft`, a stream is of one sequence: they are generated in turn")
    return _steps(ready, method)


def check_method(method: object, kinds: tuple[type[Method], ...]) -> None:
    """Raise InputError if `method` is of none of these kinds."""
    if not isinstance(method, kinds):
        known = ", ".join(f"zoo.{kind.__name__}(...)" for kind in kinds)
        raise InputError(f"`method` is one of {known}, not {method!r:.80}")


def not_for_beams(what: str) -> InputError:
    """The error for what goes without beam search."""
    return InputError(
        Problem(
            f"{what} for greedy search and sampling, not for several beams",
            help="one beam is greedy search: `--beams 1`, or in Python `zoo.Greedy()`",
        )
    )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A generation whose arguments fit the model and each other.

    Args:
        model: the model.
        inputs: its inputs.
        drafting: what guesses its tokens, if anything does.
        begin: returns the state in which decoding starts.
    """

    model: Transformer
    inputs: Inputs
    drafting: Drafting | None
    begin: Callable[[], Decoding]

    @classmethod
    def of(
        cls,
        model: Transformer,
        method: Method,
        *,
        draft: object,
        cache: bool,
        cuda_graph: bool,
        **given: Any,
    ) -> Self:
        """Check the arguments of `generate`; `given` are the others of `Inputs.read`."""

        def read(one: Transformer) -> Inputs:
            return Inputs.read(one, method=method, **given)

        inputs = read(model)
        drafting = _drafting(draft, method, cache, cuda_graph, model, inputs, read)
        return cls(
            model, inputs, drafting, partial(inputs.decoding, model, keep=cache, record=cuda_graph)
        )

    @property
    def models(self) -> list[Transformer]:
        """The model, and the one that guesses."""
        return [self.model, *(self.drafting.models if self.drafting else ())]

    def search(self, method: Greedy | Sampling) -> Iterator[Step]:
        """Greedy search and sampling, by steps."""
        choosing = Choosing.begin(method, self.inputs.ends, self.inputs.prompt.values.device)
        sources = self.inputs.source_ids(method)
        if self.drafting is None:
            yield from search(self.begin(), self.inputs.prompt, sources, choosing)
        else:
            yield from speculative_search(self.model, self.inputs, sources, self.drafting, choosing)

    def beam_search(self, method: Beam) -> list[Generated]:
        """The best sequences of a beam search."""
        sources = self.inputs.source_ids(method)
        return beam_search(self.begin(), self.inputs.prompt, sources, method, self.inputs.ends)


def _drafting(
    draft: object,
    method: Method,
    cache: bool,
    cuda_graph: bool,
    model: Transformer,
    inputs: Inputs,
    read: Callable[[Transformer], Inputs],
) -> Drafting | None:
    """The draft, if there is one, after checking that it fits the other arguments and these fit
    each other."""
    if cuda_graph and not cache:
        raise InputError("a step that is recorded has a cache: leave `cache` True")
    if draft is None:
        return None
    if isinstance(method, Beam):
        raise not_for_beams("guessed tokens are")
    if not cache:
        raise InputError("guessed tokens are checked with a cache: leave `cache` True")
    if cuda_graph:
        raise InputError(
            "guessed tokens are checked several at a time, and a CUDA graph is of one: `draft` or "
            "`cuda_graph`"
        )
    return Drafting.read(draft, model, inputs, read)


def _steps(ready: _Ready, method: Greedy | Sampling) -> Iterator[list[int | None]]:
    steps = ready.search(method)
    while True:
        with torch.inference_mode(), evaluating(*ready.models):
            step = next(steps, None)
        if step is None:
            return
        yield step[0]
