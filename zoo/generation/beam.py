"""Beam search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from zoo.generation.choosing import judged
from zoo.generation.decoding import Decoding
from zoo.generation.ends import Ends
from zoo.generation.inputs import Inputs
from zoo.generation.methods import Beam, Generated, with_others
from zoo.generation.scores import Row, largest
from zoo.weights.dtypes import widened


@dataclass(slots=True)
class Hypotheses:
    """The running sequences of one row of the batch, and its best ended ones.

    Args:
        number: the index of the row in the batch.
        method: the beam size and the length penalty.
        ends: when a sequence ends.
        running: the new tokens of each running sequence, best first.
        ended: the best ended sequences, best first; at most the beam size.
    """

    number: int
    method: Beam
    ends: Ends
    running: list[tuple[int, ...]]
    ended: list[Generated] = field(default_factory=list[Generated])

    def extend(
        self, values: Sequence[float], beams: Sequence[int], tokens: Sequence[int]
    ) -> list[int]:
        """Sort the candidates of one step into ended and running sequences.

        Args:
            values: the log-probability of each candidate, best first.
            beams: the index of the running sequence that each candidate extends.
            tokens: the token that it is extended by.

        Returns:
            The indices of the candidates that go on, padded with -1 to the beam size; empty if the
            search of this row is done.
        """
        size = self.method.size
        running: list[tuple[int, ...]] = []
        picked: list[int] = []
        for place, (value, beam, token) in enumerate(zip(values, beams, tokens, strict=True)):
            if value == -math.inf or len(picked) == size:
                break
            ids = (*self.running[beam], token)
            why = self.ends.of(ids)
            if why is not None and place < size:
                self.ended.append(Generated(ids, self.method.score(value, len(ids)), why))
            elif why is None:
                picked.append(place)
                running.append(ids)
        self.ended = sorted(self.ended, key=lambda one: -one.score)[:size]
        if not picked or self._settled(values[picked[0]], len(running[0])):
            return []
        n_missing = size - len(picked)
        self.running = running + running[:1] * n_missing
        return picked + [-1] * n_missing

    def _settled(self, best_running: float, n_tokens: int) -> bool:
        """Whether the list of ended sequences is full, and the best running sequence, of this
        log-probability and length, scores no better than the worst of them, or does not count."""
        if len(self.ended) < self.method.size:
            return False
        if self.method.early_stopping is True:
            return True
        if self.method.early_stopping == "never" and self.method.length_penalty > 0.0:
            n_tokens = self.ends.max_new_tokens  # of the divisor, which then is the largest
        return self.ended[-1].score >= self.method.score(best_running, n_tokens)


def beam_search(decoding: Decoding, inputs: Inputs, method: Beam) -> list[Generated]:
    """Find the best sequence for each row, or the best ones.

    In each step every running sequence is extended by every token. Those of the best `size`
    candidates that end are set aside; the best `size` candidates that do not end go on. A row is
    done when `size` sequences have ended and the best running one scores no better than the worst
    of them.

    Raises:
        InputError: this number of beams does not fit into memory.
    """
    prompt, sources, ends = inputs.prompt, inputs.source_ids(), inputs.request.ends
    size, batch, device = method.size, prompt.values.shape[0], prompt.values.device
    scores = decoding.scores(prompt.values, prompt.mask)
    decoding.check_copies(size, "beams", scores)
    rows = [Hypotheses(number, method, ends, [()] * size) for number in range(batch)]
    begun = prompt.lists()
    best: dict[int, Generated] = {}
    copies = torch.arange(batch, device=device).repeat_interleave(size)
    decoding.select(copies)
    scores = scores[copies]
    # All beams of a row are equal at first, so all but one start at -inf.
    totals = torch.full((batch, size), -torch.inf, device=device)
    totals[:, 0] = 0.0
    # The most candidates that can end in one step, plus the `size` that go on. Any may end that a
    # function judges: then fewer may go on, as in `transformers`.
    n_best = (1 + max(len(ends.last_ids), ends.judge is not None)) * size
    for n_new in range(ends.max_new_tokens):
        found = widened(scores).log_softmax(-1)
        found = judged(found, _sequences(rows, sources, begun), method, n_new, ends)
        if method.renormalize:
            found = found.log_softmax(-1)
        values, beams, tokens = _candidates(found, totals, n_best)
        table = list(zip(values.tolist(), beams.tolist(), tokens.tolist(), strict=True))
        decoding.check([row_values[0] for row_values, _, _ in table])
        going: list[int] = []
        picks: list[list[int]] = []
        for index, row in enumerate(rows):
            if picked := row.extend(*table[index]):
                going.append(index)
                picks.append(picked)
            else:
                best[row.number] = with_others(row.ended[: method.n_answers])
        if not going:
            break
        kept, chosen = torch.tensor(going, device=device), torch.tensor(picks, device=device)
        missing = chosen < 0
        chosen = chosen.clamp(min=0)
        totals = values[kept].gather(1, chosen).masked_fill(missing, -torch.inf)
        parents = (kept[:, None] * size + beams[kept].gather(1, chosen)).flatten()
        next_tokens = tokens[kept].gather(1, chosen).view(-1, 1)
        decoding.select(parents, kept if len(going) < len(rows) else None)
        rows = [rows[index] for index in going]
        scores = decoding.scores(next_tokens)
    return [best[number] for number in range(batch)]


def _candidates(
    scores: torch.Tensor, totals: torch.Tensor, n_best: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the best extensions of each row's sequences.

    Args:
        scores: log-probabilities of the next token, (rows * size, vocab).
        totals: log-probabilities of the running sequences, (rows, size).
        n_best: the number of extensions per row.

    Returns:
        The log-probabilities of the extensions, best first, the indices of the sequences that they
        extend, and their tokens, each (rows, n_best), or fewer columns if there are fewer
        extensions.
    """
    found, tokens = largest(scores, n_best)
    sums = found.view(*totals.shape, -1) + totals[:, :, None]
    values, places = sums.flatten(1).topk(min(n_best, sums[0].numel()))
    return values, places // found.shape[-1], tokens.view(len(sums), -1).gather(1, places)


def _sequences(
    rows: Sequence[Hypotheses], sources: Sequence[list[int]], begun: Sequence[list[int]]
) -> Iterator[Row]:
    """The running sequences of all rows, with the sources and the prompts of the batch."""
    for row in rows:
        for ids in row.running:
            yield Row(row.number, sources[row.number], begun[row.number], list(ids))
