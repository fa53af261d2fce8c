"""When a generated sequence ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from zoo.arguments import check_count, is_whole
from zoo.errors import InputError
from zoo.generation.methods import outside_vocabulary

MOST_NEW = 2**62
"""The most new tokens. Together with those of a prompt, they are counted in 64 bits."""

Stop = Sequence[Sequence[int]] | Callable[[Sequence[int]], bool]
"""Sequences of ids that end a sequence, or a function of its new ids that says whether it ends."""


@dataclass(frozen=True, slots=True)
class Ends:
    """When a sequence ends.

    Args:
        max_new_tokens: after this number of new tokens.
        eos: after one of these ids.
        stop: after one of these sequences of ids.
        judge: says of the new ids of a sequence whether it ends; None if nothing does.
    """

    max_new_tokens: int
    eos: frozenset[int]
    stop: tuple[tuple[int, ...], ...]
    judge: Callable[[Sequence[int]], bool] | None = None

    @classmethod
    def read(cls, max_new_tokens: int, eos: int | Sequence[int], stop: Stop) -> Ends:
        """Check these arguments of `generate`.

        Raises:
            InputError: a value is not an integer, `max_new_tokens` is below 1 or above `MOST_NEW`,
                or a stop sequence is empty.
        """
        n_new = check_count("max_new_tokens", max_new_tokens)
        if n_new > MOST_NEW:
            raise InputError(f"`max_new_tokens` is at most {MOST_NEW:,}")
        try:
            ends = list(cast("Sequence[int]", eos))
        except TypeError:  # one id; anything else is refused below
            ends = [cast("int", eos)]
        judge = stop if callable(stop) else None
        try:
            given = () if callable(stop) else stop
            stops = [tuple(one) if isinstance(one, Sequence) else (one,) for one in given]
        except TypeError:
            raise InputError(f"`stop` is a list of sequences of ids, not {stop!r:.80}") from None
        for one in [*ends, *(id_ for sequence in stops for id_ in sequence)]:
            if not is_whole(one):
                raise InputError(f"`eos` and `stop` hold ids, which are integers, not {one!r:.80}")
        if () in stops:
            raise InputError("`stop` holds an empty sequence, with which everything ends")
        sequences = tuple(tuple(map(int, one)) for one in stops)
        return cls(n_new, frozenset(map(int, ends)), sequences, judge)

    def check(self, vocab: int) -> None:
        """Raise InputError if `eos` or `stop` has an id that is outside the vocabulary."""
        for one in sorted(self.eos.union(*self.stop)):
            if not 0 <= one < vocab:
                raise outside_vocabulary("`eos`" if one in self.eos else "`stop`", one, vocab)

    @property
    def last_ids(self) -> frozenset[int]:
        """The ids that can end a sequence before `max_new_tokens`, if nothing judges it."""
        return self.eos.union(stop[-1] for stop in self.stop)

    def of(self, ids: Sequence[int]) -> Literal["eos", "stop", "length"] | None:
        """The reason why a sequence ends after these new ids, or None if it goes on."""
        if ids[-1] in self.eos:
            return "eos"
        if any(tuple(ids[-len(stop) :]) == stop for stop in self.stop):
            return "stop"
        if self.judge is not None and self.judge(ids):
            return "stop"
        return "length" if len(ids) >= self.max_new_tokens else None
