"""Greedy search and sampling, for several rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from zoo.generation.decoding import Decoding
from zoo.generation.ends import Ends
from zoo.generation.methods import Generated, Greedy, Sampling
from zoo.generation.prompts import Rows
from zoo.generation.sampling import draw, probabilities
from zoo.generation.scores import constrain, penalize


@dataclass(slots=True)
class Row:
    """A sequence that is being generated: its index in the batch, the ids of its source and of its
    prompt, its new ids, and the sum of their log-probabilities."""

    number: int
    source: list[int]
    seen: list[int]
    ids: list[int] = field(default_factory=list[int])
    score: float = 0.0

    @property
    def sequence(self) -> list[int]:
        """All its ids so far."""
        return self.seen + self.ids


def search(
    decoding: Decoding,
    prompt: Rows,
    sources: Sequence[list[int]],
    method: Greedy | Sampling,
    ends: Ends,
) -> Iterator[tuple[list[int | None], list[tuple[int, Generated]]]]:
    """Extend each row by one token at a time. Rows that have ended leave the batch.

    `sources` are the ids of each row's source, for `encoder_no_repeat_ngram_size`.

    Yields:
        For each step, the new token of each row, None for rows that have ended earlier; and the
        results of the rows that end in this step, with their indices.
    """
    batch = prompt.values.shape[0]
    both = zip(sources, prompt.lists(), strict=True)
    rows = [Row(number, source, seen) for number, (source, seen) in enumerate(both)]
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
        sequences, sources = [row.sequence for row in rows], [row.source for row in rows]
        judged = constrain(judged, sequences, sources, method, n_new, ends)
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
