"""Greedy search and sampling, for several rows at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zoo.generation.choosing import Choosing, log_probability
from zoo.generation.decoding import Decoding
from zoo.generation.inputs import Inputs
from zoo.generation.methods import Generated
from zoo.generation.scores import Row

Step = tuple[list[int | None], list[tuple[int, Generated]]]
"""The new token of each row, None for rows that have ended earlier; and the results of the rows
that end in this step, with their indices."""


def search(decoding: Decoding, inputs: Inputs, choosing: Choosing) -> Iterator[Step]:
    """Extend each row by one token at a time. Rows that have ended leave the batch.

    Of each prompt there are as many rows as the method asks for, one after the other.

    Raises:
        InputError: this number of answers does not fit into memory.
    """
    prompt, n = inputs.prompt, choosing.method.n_answers
    both = zip(inputs.source_ids(), prompt.lists(), strict=True)
    copied = (one for one in both for _ in range(n))
    rows = [Row(number, source, seen) for number, (source, seen) in enumerate(copied)]
    batch = len(rows)
    scores = decoding.scores(prompt.values, prompt.mask)
    if n > 1:
        decoding.check_copies(n, "answers", scores)
        copies = torch.arange(len(scores), device=scores.device).repeat_interleave(n)
        decoding.select(copies, copies)
        scores = scores[copies]
    while True:
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
        if not left:
            return
        tokens = chosen
        if len(left) < len(rows):
            rows = [rows[index] for index in left]
            kept = torch.tensor(left, device=tokens.device, dtype=torch.long)
            tokens = tokens[kept]
            decoding.select(kept, kept)
        scores = decoding.scores(tokens)
