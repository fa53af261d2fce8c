"""Greedy search and sampling, for several rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from zoo.errors import InputError
from zoo.generation.decoding import Decoding
from zoo.generation.methods import Generated, Greedy, Sampling, outside_vocabulary
from zoo.generation.prompts import Rows
from zoo.generation.sampling import draw, probabilities
from zoo.generation.scores import constrain, penalize


def check_new_tokens(number: object) -> None:
    """Raise InputError if `number` is not a positive integer."""
    if type(number) is not int or number < 1:
        raise InputError(f"`max_new_tokens` is at least 1, not {number!r:.80}")


@dataclass(frozen=True, slots=True)
class Ends:
    """When a sequence ends.

    Args:
        max_new_tokens: after this number of new tokens.
        eos: after one of these ids.
        stop: after one of these sequences of ids.
    """

    max_new_tokens: int
    eos: frozenset[int]
    stop: tuple[tuple[int, ...], ...]

    @classmethod
    def read(
        cls, max_new_tokens: int, eos: int | Sequence[int], stop: Sequence[Sequence[int]]
    ) -> Ends:
        """Check these arguments of `generate`.

        Raises:
            InputError: a value is not an integer, `max_new_tokens` is below 1, or a stop sequence
                is empty.
        """
        check_new_tokens(max_new_tokens)
        if not isinstance(stop, Iterable):
            raise InputError(f"`stop` is a list of sequences of ids, not {stop!r:.80}")
        ends = list(eos) if isinstance(eos, Iterable) else [eos]
        stops = [tuple(one) if isinstance(one, Sequence) else (one,) for one in stop]
        for one in [*ends, *(id_ for sequence in stops for id_ in sequence)]:
            if type(one) is not int:
                raise InputError(f"`eos` and `stop` hold ids, which are integers, not {one!r:.80}")
        if () in stops:
            raise InputError("`stop` holds an empty sequence, with which everything ends")
        return cls(max_new_tokens, frozenset(ends), tuple(stops))

    def check(self, vocab: int) -> None:
        """Raise InputError if `eos` or `stop` has an id that is outside the vocabulary."""
        for one in sorted(self.eos.union(*self.stop)):
            if not 0 <= one < vocab:
                raise outside_vocabulary("`eos`" if one in self.eos else "`stop`", one, vocab)

    @property
    def last_ids(self) -> frozenset[int]:
        """The ids that can end a sequence before `max_new_tokens`."""
        return self.eos.union(stop[-1] for stop in self.stop)

    def of(self, ids: Sequence[int]) -> Literal["eos", "stop", "length"] | None:
        """The reason why a sequence ends after these new ids, or None if it goes on."""
        if ids[-1] in self.eos:
            return "eos"
        if any(tuple(ids[-len(stop) :]) == stop for stop in self.stop):
            return "stop"
        return "length" if len(ids) >= self.max_new_tokens else None


@dataclass(slots=True)
class Row:
    """A sequence that is being generated: its index in the batch, the ids of its prompt, its new
    ids, and the sum of their log-probabilities."""

    number: int
    seen: list[int]
    ids: list[int] = field(default_factory=list[int])
    score: float = 0.0

    @property
    def sequence(self) -> list[int]:
        """All its ids so far."""
        return self.seen + self.ids


def search(
    decoding: Decoding, prompt: Rows, method: Greedy | Sampling, ends: Ends
) -> Iterator[tuple[list[int | None], list[tuple[int, Generated]]]]:
    """Extend each row by one token at a time. Rows that have ended leave the batch.

    Yields:
        For each step, the new token of each row, None for rows that have ended earlier; and the
        results of the rows that end in this step, with their indices.
    """
    batch = prompt.values.shape[0]
    rows = [Row(number, present(prompt, number)) for number in range(batch)]
    random = None
    if isinstance(method, Sampling):
        random = torch.Generator(prompt.values.device).manual_seed(method.seed)
    tokens, mask = prompt.values, prompt.mask
    while rows:
        scores = decoding.scores(tokens, mask)
        chosen, added = _choose(scores, rows, method, ends, random)
        new: list[int] = chosen.tolist()
        log_probabilities: list[float] = added.tolist()
        decoding.check(log_probabilities)
        step: list[int | None] = [None] * batch
        ended: list[tuple[int, Generated]] = []
        left: list[int] = []
        for index, row in enumerate(rows):
            row.ids.append(new[index])
            row.score += log_probabilities[index]
            step[row.number] = new[index]
            why = ends.of(row.ids)
            if why is None:
                left.append(index)
            else:
                ended.append((row.number, Generated(tuple(row.ids), row.score, why)))
        yield step, ended
        tokens, mask = chosen[:, None], None
        if len(left) < len(rows):
            rows = [rows[index] for index in left]
            kept = torch.tensor(left, device=tokens.device, dtype=torch.long)
            tokens = tokens[kept]
            decoding.select(kept, kept)


def present(prompt: Rows, number: int) -> list[int]:
    """The ids of a row of the prompt, without padding."""
    ids = prompt.values[number]
    found: list[int] = (ids if prompt.mask is None else ids[prompt.mask[number]]).tolist()
    return found


def _choose(
    scores: torch.Tensor,
    rows: Sequence[Row],
    method: Greedy | Sampling,
    ends: Ends,
    random: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row, and its log-probability under the model, both (rows,)."""
    wide = judged = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if method.repetition_penalty != 1.0:
        seen = _rectangle([row.sequence for row in rows], wide.device)
        judged = penalize(judged, seen, method.repetition_penalty)
    n_new = len(rows[0].ids)
    if method.constrains(n_new, ends.max_new_tokens):
        sequences = [row.sequence for row in rows]
        judged = constrain(judged, sequences, method, n_new, ends.max_new_tokens, ends.eos)
    if isinstance(method, Sampling):
        found = probabilities(judged, method)
        # NaN cannot be drawn from; `Decoding.check` reports it later by the log-probability.
        chosen = draw(found.nan_to_num(1.0), random)
    else:
        chosen = judged.argmax(-1, keepdim=True)
    added = wide.log_softmax(-1).gather(1, chosen)
    return chosen[:, 0], added[:, 0]


def _rectangle(rows: Sequence[list[int]], device: torch.device) -> torch.Tensor:
    """Rows of different lengths as one tensor, each padded with its own first id."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + row[:1] * (longest - len(row)) for row in rows], device=device)
