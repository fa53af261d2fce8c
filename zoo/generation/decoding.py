"""Running a model step by step: from the latest tokens to the scores of the next one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from zoo.cache import Cache
from zoo.errors import InputError
from zoo.generation.media import Media
from zoo.generation.outputs import no_numbers
from zoo.generation.prompts import Rows
from zoo.machine.devices import input_device
from zoo.machine.memory_limit import memory_limit
from zoo.purpose import Generation
from zoo.sharding.parts import is_fetched
from zoo.slots import Head
from zoo.spec import ModelSpec
from zoo.transformer import Generating, Transformer, held_in

if TYPE_CHECKING:
    from zoo.sharding.company import Company


class RecomputeWarning(UserWarning):
    """The cache cannot be used, so each new token costs a pass over all tokens before it."""


class Memory:
    """The states that cross-attention attends to, (batch, length, width), and their mask."""

    def __init__(self, states: torch.Tensor, mask: torch.Tensor | None) -> None:
        self.states = states
        # A mask that hides nothing would only slow attention down.
        self.mask = None if mask is None or bool(mask.all()) else mask

    def row(self, number: int) -> Memory:
        """One row alone."""
        mask = None if self.mask is None else self.mask[number : number + 1]
        return Memory(self.states[number : number + 1], mask)

    def select(self, rows: torch.Tensor) -> None:
        """Keep these rows."""
        self.states = self.states[rows]
        self.mask = None if self.mask is None else self.mask[rows]


def check_transformer(model: object, what: str) -> None:
    """Raise InputError if a model is not a `zoo.Transformer`; `what` says what is done with it."""
    # Checks the spec and not the class, so that the result of `torch.compile` is accepted too.
    if isinstance(getattr(model, "spec", None), ModelSpec):
        return
    inside = held_in(model)
    shown = f"a {type(model).__name__}" if isinstance(model, nn.Module) else f"{model!r:.80}"
    raise InputError(
        f"the model that {what} is a zoo.Transformer, not {shown}",
        help=f"pass the model inside: `.{inside}`"
        if inside
        else "`zoo.load` makes one of a folder or a name",
    )


def describe(model: Transformer) -> Generation:
    """Describe how the model generates.

    Raises:
        InputError: the model does not generate, or is not a `zoo.Transformer`.
    """
    check_transformer(model, "generates")
    found = model.spec.model.generation
    if found is None:
        head = getattr(model.spec.model, "head", None)
        ends = f" and its head `{head.kind}`" if isinstance(head, Head) else ""
        raise InputError(
            f"{model.spec.name} does not generate: its builder is `{model.spec.model.kind}`{ends}",
            help="generating takes a decoder, and a head that scores the vocabulary",
        )
    return found


def _company_of(model: Transformer) -> Company | None:
    """The processes with which this one fetches the weights of each step; None if it has them."""
    if not is_fetched(model):
        return None
    from zoo.sharding.company import company_of

    return company_of(model)


def encode(model: Transformer, source: Rows) -> Memory:
    """Encode the source into the memory that the decoder attends to."""
    module = cast("Generating", model)
    states = module.encode(source.values, source_mask=source.mask)
    return Memory(states, module.memory_mask(source.values, source.mask))


class Decoding:
    """The state of a generation: the model, the tokens so far, and the key-value cache.

    Args:
        model: the model that generates.
        capacity: the most tokens that a row will have.
        memory: what the decoder attends to. Each of its rows serves the same number of consecutive
            rows of tokens (the beams of one source).
        media: the images or sounds that stand in the first tokens, if any do.
        keep: whether to cache earlier tokens; otherwise each pass computes all of them again.
        back: how many of the last tokens `take_back` can take back, with a cache.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        capacity: int,
        memory: Memory | None,
        keep: bool,
        media: Media | None = None,
        back: int = 0,
    ) -> None:
        self.model = cast("Generating", model)
        self.name, self.device = model.spec.name, input_device(model)
        self.capacity, self.memory = capacity, memory
        self._media = media
        self._inserted: Any = None
        self._n_prompt = 0
        self.how = describe(model)
        self.keep = keep
        if keep and self.how.not_incremental:
            self.keep = False
            self._warn(f"{', '.join(self.how.not_incremental)} cannot use a cache")
        self.cache = Cache(capacity, back=back)
        self._told = False
        self._tokens: torch.Tensor | None = None
        self._mask: torch.Tensor | None = None
        self._company = _company_of(model)

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"{self.name}: {why}; a token is computed anew from all before it",
            RecomputeWarning,
            stacklevel=3,
        )

    def scores(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Append tokens to each row, and score the token that follows them.

        Args:
            tokens: the new tokens, (rows, length).
            mask: (rows, length), False at padding on the left; only in the first call.

        Returns:
            Scores of the next token, (rows, vocab).
        """
        return self.model.head(self._states(tokens, mask)[:, -1])

    def scores_of_each(self, tokens: torch.Tensor, n: int) -> torch.Tensor:
        """Append tokens to the only row, with a cache, and score what follows each of the last n.

        Args:
            tokens: the new tokens, (1, length).
            n: how many of them.

        Returns:
            Scores of the tokens that follow them, (n, vocab).
        """
        return self.model.head(self._states(tokens, None)[0, -n:])

    def _states(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Append tokens, and return the decoder's states, (rows, length, width), of which the last
        are those of the latest tokens."""
        memory, memory_mask = self._memory_for(tokens.shape[0])
        before = 0 if self._tokens is None else self._tokens.shape[1]
        self._n_prompt = self._n_prompt or tokens.shape[1]  # the first call is that of the prompt
        if self._media is not None and before == 0:
            tokens, self._inserted = self._media.insert(self.model, tokens, mask)
        every, every_mask = self._append(tokens, mask)
        changed = self.keep and self._changed(before, every, every_mask)
        if changed or not self.keep:
            # There is no cache, or its contents are no longer valid.
            self.cache = Cache(self.capacity, back=self.cache.past.back)
            tokens, mask = every, every_mask
        more = self._of_prompt(tokens) if self.cache.past.length == 0 else {}
        last = None
        if not self.keep and mask is not None:
            # Move padding to the right: a convolution would read padding that precedes a token.
            order = mask.long().argsort(dim=1, descending=True, stable=True)
            tokens, mask = tokens.gather(1, order), mask.gather(1, order)
            if "prompt" in more:
                more["prompt"] = more["prompt"].gather(1, order)
            last = mask.sum(1) - 1
        if self._company is not None:
            self._company.goes_on(here=True)
        states = self.model.decode(
            tokens, memory, target_mask=mask, memory_mask=memory_mask, cache=self.cache, **more
        )
        return states if last is None else states.take_along_dim(last[:, None, None], 1)

    def _of_prompt(self, tokens: torch.Tensor) -> dict[str, Any]:
        """What `decode` takes with the first tokens of all rows: no later ones are media, or see
        others than those before them."""
        found: dict[str, Any] = {}
        if self._inserted is not None:
            found["inserted"] = self._inserted
        if self.how.bidirectional_prompt:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            found["prompt"] = (places < self._n_prompt).expand(tokens.shape)
        return found

    def accompany(self) -> None:
        """At the end, if other processes still generate with weights that all fetch together: take
        part in their steps, for nothing, until the last of them ends."""
        if self._company is None or self._tokens is None:
            return
        memory = None if self.memory is None else self.memory.row(0)
        states, mask = (None, None) if memory is None else (memory.states, memory.mask)
        token = torch.zeros_like(self._tokens[:1, :1])
        while self._company.goes_on(here=False):
            self.model.decode(token, states, target_mask=None, memory_mask=mask, cache=None)

    def _memory_for(self, n_rows: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.memory is None:
            return None, None
        states, mask = self.memory.states, self.memory.mask
        if self.keep:
            return states, mask
        times = n_rows // states.shape[0]
        repeated = None if mask is None else mask.repeat_interleave(times, 0)
        return states.repeat_interleave(times, 0), repeated

    def _append(
        self, tokens: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Append tokens, and return all tokens so far and their mask."""
        if self._tokens is None:
            self._tokens, self._mask = tokens, mask
        else:
            if self._mask is not None:
                there = torch.ones_like(tokens, dtype=torch.bool)
                self._mask = torch.cat([self._mask, there], 1)
            self._tokens = torch.cat([self._tokens, tokens], 1)
        return self._tokens, self._mask

    def _changed(self, before: int, tokens: torch.Tensor, mask: torch.Tensor | None) -> bool:
        """Whether the new length of some row changes the encoding of its earlier positions, which
        makes the cache invalid."""
        if before == 0:
            return False
        n_new, longest = tokens.shape[1] - before, tokens.shape[1]
        lengths = {longest} if mask is None else set(mask.sum(1).tolist())
        changed = any(self.how.changes(length - n_new, length) for length in lengths)
        if changed and not self._told:
            self._told = True
            self._warn("its positions are told apart otherwise in so long a sequence")
        return changed

    def select(self, rows: torch.Tensor, memory_rows: torch.Tensor | None = None) -> None:
        """Keep these rows, and `memory_rows` of the memory, or all of it if that is None."""
        if self.memory is not None and memory_rows is not None:
            self.memory.select(memory_rows)
        if self.keep:
            self.cache.select(rows, memory_rows)
        if self._tokens is not None:
            self._tokens = self._tokens[rows]
            self._mask = None if self._mask is None else self._mask[rows]

    def take_back(self, n_tokens: int) -> int:
        """Forget the last tokens, as `Cache.take_back` does. Returns how many were taken back."""
        taken = self.cache.take_back(n_tokens)
        if self._tokens is not None:
            self._tokens = self._tokens[:, : self._tokens.shape[1] - taken]
        return taken

    def check_copies(self, n: int, what: str, scores: torch.Tensor) -> None:
        """Check that there is room for `n` sequences that continue each prompt: for the `scores`
        after each, (batch, vocab), their log-probabilities, and what is cached of the prompt. The
        cache of a source is left out, which beams share.

        Raises:
            InputError: the machine has less memory. The message calls the sequences `what`.
        """
        limit = memory_limit()
        one = scores.nbytes + scores.numel() * max(scores.itemsize, torch.float32.itemsize)
        if self.memory is None:
            one += self.cache.n_bytes * self.cache.past.length // self.cache.past.capacity
        if limit is not None and n * one > limit:
            raise InputError(
                f"{n:,} {what} do not fit into memory: their scores and what is cached of the "
                f"prompt are {n * one:,} bytes, and this machine has {limit:,}",
                help=f"fewer {what} take less",
            )

    def check(self, log_probabilities: list[float]) -> None:
        """Raise WeightsError if one of the chosen tokens' log-probabilities is NaN."""
        if any(value != value for value in log_probabilities):
            raise no_numbers(self.name, "the scores of the next token")
