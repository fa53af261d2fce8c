"""What guesses the next tokens of a sequence, for the model to check several at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch.nn.functional import pad

from zoo.errors import InputError, Place, placing
from zoo.generation.choosing import Choosing
from zoo.generation.decoding import Decoding, describe
from zoo.generation.inputs import Given, Inputs
from zoo.generation.outputs import check_numbers
from zoo.generation.request import Draft, Lookup
from zoo.generation.scores import Row
from zoo.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Drafting:
    """A draft that fits the model.

    Args:
        draft: what guesses.
        inputs: the inputs of the smaller model; None if there is none.
        vocab: the number of tokens of the model whose tokens are guessed.
    """

    draft: Draft | Lookup
    inputs: Inputs | None
    vocab: int

    @classmethod
    def read(cls, model: Transformer, given: Given, inputs: Inputs) -> Self | None:
        """The draft of a request, if it has one.

        Args:
            model: the model whose tokens are guessed.
            given: what it is given; the smaller model is given the same.
            inputs: the model's inputs.

        Raises:
            InputError: the draft does not fit the model, or one of the two cannot check several
                tokens at once.
        """
        draft = inputs.request.draft
        if draft is None:
            return None
        _check_takes_back(model, inputs)
        of_draft = None
        if isinstance(draft, Draft):
            _check_same_kind(draft.model, model)
            if inputs.media is not None:
                raise InputError(
                    f"a smaller model guesses no tokens of prompts with {inputs.media.kind} in "
                    "them",
                    help="`zoo.Lookup()` does, in the place of a model",
                )
            with placing(Place("draft")):
                of_draft = Inputs.read(draft.model, given, inputs.request)
            _check_takes_back(draft.model, of_draft)
        return cls(draft, of_draft, describe(model).target_vocab)

    @property
    def models(self) -> list[Transformer]:
        """The smaller model, if there is one."""
        return [self.draft.model] if isinstance(self.draft, Draft) else []

    @property
    def back(self) -> int:
        """How many tokens the model may have to take back: those that are guessed, and as many that
        a state takes back with them."""
        return 2 * self.draft.n_tokens

    def drafter(self, number: int, choosing: Choosing) -> Drafter:
        """What guesses the tokens of the sequence with this number."""
        if isinstance(self.draft, Lookup):
            return LookupDrafter(self.draft)
        assert self.inputs is not None
        decoding = self.inputs.row(number).decoding(self.draft.model, back=self.draft.n_tokens)
        return ModelDrafter(decoding, self.draft.n_tokens, vocab=self.vocab, choosing=choosing)


def _check_same_kind(small: Transformer, model: Transformer) -> None:
    """Raise InputError unless both models have an encoder, or neither has."""
    if describe(small).has_source != describe(model).has_source:
        has = "an" if describe(small).has_source else "no"
        raise InputError(
            f"{small.spec.name} cannot guess the tokens of {model.spec.name}: it has {has} encoder",
            help="a draft is a smaller model of the same kind and with the same vocabulary",
        )


def _check_takes_back(model: Transformer, inputs: Inputs) -> None:
    """Raise InputError unless the model can read tokens and take them back."""
    how, name = describe(model), model.spec.name
    if how.not_incremental:
        raise InputError(
            f"{name} cannot check guessed tokens: {', '.join(how.not_incremental)} cannot use a "
            "cache"
        )
    length = inputs.prompt.values.shape[1]
    if how.changes(length, length + inputs.request.ends.max_new_tokens - 1):
        raise InputError(
            f"{name} cannot check guessed tokens: its positions are told apart otherwise in so "
            "long a sequence",
            help="a smaller `max_new_tokens`, or no `draft`",
        )


class Guess(NamedTuple):
    """Guessed tokens.

    Args:
        ids: their ids, in their order.
        drawn_from: the distribution that each was drawn from, (len(ids), vocab); None if none was
            drawn.
    """

    ids: list[int]
    drawn_from: torch.Tensor | None = None


class Drafter(Protocol):
    """Guesses the next tokens of one sequence; `n_tokens` is how many at most."""

    n_tokens: int

    def guess(self, row: Row, n: int) -> Guess:
        """Guess n tokens that follow, or fewer."""
        ...


class LookupDrafter:
    """Guesses by `Lookup`."""

    def __init__(self, lookup: Lookup) -> None:
        self.n_tokens, self.longest = lookup.n_tokens, lookup.longest
        self._next: dict[tuple[int, ...], int] = {}
        self._n_read = 0

    def guess(self, row: Row, n: int) -> Guess:
        """As `Drafter.guess`."""
        ids = row.sequence
        for place in range(self._n_read, len(ids)):
            for size in range(1, min(self.longest, place) + 1):
                self._next[tuple(ids[place - size : place])] = place
        self._n_read = length = len(ids)
        for size in range(self.longest, 0, -1):
            place = self._next.get(tuple(ids[-size:]), length)
            if place < length:
                # Where that reaches the end of the sequence, it goes on with its own guesses: a
                # text that repeats itself does so on.
                for _ in range(n):
                    ids.append(ids[place])
                    place += 1
                return Guess(ids[length:])
        return Guess([])


class ModelDrafter:
    """Guesses by a smaller model.

    Args:
        decoding: the smaller model's.
        n_tokens: how many tokens at most.
        vocab: the vocabulary of the model whose tokens are guessed. That of the smaller model may
            be larger or smaller: in a family of models, they are often filled up to other sizes.
        choosing: how tokens are chosen.
    """

    def __init__(
        self, decoding: Decoding, n_tokens: int, *, vocab: int, choosing: Choosing
    ) -> None:
        self.decoding, self.n_tokens = decoding, n_tokens
        self.vocab, self.choosing = vocab, choosing
        self._read: list[int] = []

    def guess(self, row: Row, n: int) -> Guess:
        """As `Drafter.guess`."""
        if n == 0:
            return Guess([])
        guessed = Row(row.number, row.source, row.seen, row.ids.copy())
        new = self._unread(row.sequence)
        if max(new) >= self.decoding.how.target_vocab:
            return Guess([])
        drawn_from: list[torch.Tensor] = []
        for _ in range(n):
            scores = self._scores(new)
            chosen, found = self.choosing.choose(self.choosing.judged(scores, [guessed]))
            new = [int(chosen)]
            guessed.ids += new
            if found is not None:
                drawn_from.append(found)
        return Guess(guessed.ids[len(row.ids) :], torch.cat(drawn_from) if drawn_from else None)

    def _unread(self, sequence: list[int]) -> list[int]:
        """Forget what was read and is not of the sequence; return what is to be read of it."""
        n_wrong = 0
        while self._read[: len(self._read) - n_wrong] != sequence[: len(self._read) - n_wrong]:
            n_wrong += 1
        taken = self.decoding.take_back(n_wrong)
        self._read = self._read[: len(self._read) - taken]
        return sequence[len(self._read) :]

    def _scores(self, new: list[int]) -> torch.Tensor:
        """Read tokens, and score the next one, (1, vocab)."""
        self._read += new
        scores = self.decoding.scores(torch.tensor([new], device=self.decoding.device))
        check_numbers(scores, self.decoding.name)
        return pad(scores, (0, self.vocab - scores.shape[-1]), value=-torch.inf)
