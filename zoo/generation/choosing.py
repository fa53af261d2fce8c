"""By which scores the next token of a sequence is chosen; and how, in greedy search and in
sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from zoo.generation.ends import Ends
from zoo.generation.methods import Greedy, Method, Sampling
from zoo.generation.sampling import draw, probabilities
from zoo.generation.scores import Row, constrain, penalize
from zoo.weights.dtypes import widened


@dataclass(frozen=True, slots=True)
class Choosing:
    """Chooses tokens by a method.

    Args:
        method: the method.
        ends: when a sequence ends.
        random: what tokens are drawn by; None if none are.
    """

    method: Greedy | Sampling
    ends: Ends
    random: torch.Generator | None

    @classmethod
    def begin(cls, method: Greedy | Sampling, ends: Ends, device: torch.device) -> Self:
        """The choices of one generation, drawn on this device by the method's seed."""
        random = None
        if isinstance(method, Sampling):
            random = torch.Generator(device).manual_seed(method.seed)
        return cls(method, ends, random)

    def judged(self, scores: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """The scores to choose by, (rows, vocab), in float32 or wider, of the model's, (rows,
        vocab), and the sequences, with as many new ids each."""
        return judged(widened(scores), rows, self.method, len(rows[0].ids), self.ends)

    def choose(self, judged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Choose a token of each row of judged scores, (rows, vocab).

        Returns:
            The tokens, (rows, 1), and the distributions that they were drawn from, (rows, vocab);
            None for the likeliest tokens, which are not drawn.
        """
        if not isinstance(self.method, Sampling):
            return judged.argmax(-1, keepdim=True), None
        found = probabilities(judged, self.method)
        # NaN cannot be drawn from; `Decoding.check` reports it later by the log-probability.
        return draw(found.nan_to_num(1.0), self.random), found


def judged(
    scores: torch.Tensor, rows: Iterable[Row], method: Method, n_new: int, ends: Ends
) -> torch.Tensor:
    """The scores, (rows, vocab), with the repetition penalty, and with what is forbidden or forced.

    Args:
        scores: (rows, vocab), in float32 or wider.
        rows: the sequences, with `n_new` new ids each. They are made only if the method looks at
            them.
        method: what is penalized, forbidden and forced.
        n_new: how many of the ids of each sequence are new.
        ends: when a sequence ends.
    """
    penalizes = method.repetition_penalty != 1.0
    constrains = method.constrains(n_new, ends.max_new_tokens)
    if not (penalizes or constrains):
        return scores
    rows = list(rows)
    if penalizes:
        seen = _rectangle([row.sequence for row in rows], scores.device)
        scores = penalize(scores, seen, method.repetition_penalty)
    return constrain(scores, rows, method, ends) if constrains else scores


def log_probability(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The log-probability, (rows,), of chosen tokens, (rows, 1), under the model's scores, (rows,
    vocab)."""
    return widened(scores).log_softmax(-1).gather(1, chosen)[:, 0]


def _rectangle(rows: Sequence[list[int]], device: torch.device) -> torch.Tensor:
    """Rows of different lengths as one tensor, each padded with its own first id."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + row[:1] * (longest - len(row)) for row in rows], device=device)
