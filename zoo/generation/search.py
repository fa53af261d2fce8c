"""Greedy search and sampling, for several rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from zoo.generation.choosing import Choosing, Row, log_probability
from zoo.generation.decoding import Decoding
from zoo.generation.methods import Generated
from zoo.generation.prompts import Rows

Step = tuple[list[int | None], list[tuple[int, Generated]]]
"""The new token of each row, None for rows that have ended earlier; and the results of the rows
that end in this step, with their indices."""


def search(
    decoding: Decoding, prompt: Rows, sources: Sequence[list[int]], choosing: Choosing
) -> Iterator[Step]:
    """Extend each row by one token at a time. Rows that have ended leave the batch.

    `sources` are the ids of each row's source, for `encoder_no_repeat_ngram_size`.
    """
    batch = prompt.values.shape[0]
    both = zip(sources, prompt.lists(), strict=True)
    rows = [Row(number, source, seen) for number, (source, seen) in enumerate(both)]
    tokens, mask = prompt.values, prompt.mask
    while rows:
        scores = decoding.scores(tokens, mask)
        chosen, _ = choosing.choose(choosing.judged(scores, rows))
        log_probabilities: list[float] = log_probability(scores, chosen).tolist()
        new: list[int] = chosen[:, 0].tolist()
        decoding.check(log_probabilities)
        step: list[int | None] = [None] * batch
        ended: list[tuple[int, Generated]] = []
        left: list[int] = []
        for index, row in enumerate(rows):
            row.ids.append(new[index])
            row.score += log_probabilities[index]
            step[row.number] = new[index]
            why = choosing.ends.of(row.ids)
            if why is None:
                left.append(index)
            else:
                ended.append((row.number, Generated(tuple(row.ids), row.score, why)))
        yield step, ended
        tokens, mask = chosen, None
        if len(left) < len(rows):
            rows = [rows[index] for index in left]
            kept = torch.tensor(left, device=tokens.device, dtype=torch.long)
            tokens = tokens[kept]
            decoding.select(kept, kept)
