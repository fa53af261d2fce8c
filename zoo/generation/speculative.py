"""Greedy search and sampling with guessed tokens: the model checks several in one pass.

What is generated is what is generated without guesses: the same tokens in greedy search, and tokens
of the same distribution in sampling (Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023,
arXiv:2302.01318).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zoo.generation.choosing import Choosing, log_probability
from zoo.generation.decoding import Decoding
from zoo.generation.drafts import Drafter, Drafting, Guess
from zoo.generation.inputs import Inputs
from zoo.generation.methods import Generated, Sampling
from zoo.generation.sampling import draw, probabilities
from zoo.generation.scores import Row
from zoo.generation.search import Step
from zoo.transformer import Transformer


def speculative_search(
    model: Transformer, inputs: Inputs, drafting: Drafting, choosing: Choosing
) -> Iterator[Step]:
    """Extend each sequence by itself, one after the other, since of each another number of guesses
    is right. The arguments are as those of `search`; a step is of one sequence."""
    sources, n = inputs.source_ids(), choosing.method.n_answers
    for number in range(n * len(sources)):
        prompt = number // n
        alone = inputs.row(prompt)
        decoding = alone.decoding(model, back=drafting.back)
        (seen,) = alone.prompt.lists()
        row = Row(number, sources[prompt], seen)
        yield from _speculate(decoding, drafting.drafter(prompt, choosing), row, choosing)
    decoding.accompany()


def _speculate(
    decoding: Decoding, drafter: Drafter, row: Row, choosing: Choosing
) -> Iterator[Step]:
    """Extend a row, which is the only one of its batch.

    Each pass over the model reads the guessed tokens and those that it has not read yet. It scores
    the token that follows each: as many guesses as are right are kept, and the token after them is
    chosen too. The first pass is over the prompt alone.
    """
    unread, guess = row.seen, Guess([])
    while True:
        tokens = torch.tensor([unread + guess.ids], device=decoding.device)
        scores = decoding.scores_of_each(tokens, len(guess.ids) + 1)
        for place, (guessed, score) in enumerate(zip([*guess.ids, None], scores, strict=True)):
            drawn_from = None if guess.drawn_from is None else guess.drawn_from[place : place + 1]
            judged = choosing.judged(score[None], [row])
            chosen = _chosen(judged, guessed, drawn_from, choosing)
            new, added = int(chosen), float(log_probability(score[None], chosen))
            decoding.check([added])
            row.ids.append(new)
            row.score += added
            why = choosing.ends.of(row.ids)
            if why is not None:
                yield [new], [(row.number, Generated(tuple(row.ids), row.score, why))]
                return
            yield [new], []
            if new != guessed:
                break
        n_wrong = len(guess.ids) - place
        n_unread = decoding.take_back(n_wrong) - n_wrong + 1
        unread = row.sequence[-n_unread:]
        # A state takes back all tokens of a pass. They are read again, now and then without more
        # guesses: then they stay.
        n_left = choosing.ends.max_new_tokens - len(row.ids) - 1
        n = min(drafter.n_tokens, n_left) if n_unread <= drafter.n_tokens else 0
        guess = drafter.guess(row, n)


def _chosen(
    judged: torch.Tensor,
    guessed: int | None,
    drawn_from: torch.Tensor | None,
    choosing: Choosing,
) -> torch.Tensor:
    """Choose a token, (1, 1), by judged scores, (1, vocab): the guessed one, if it is right.

    A guess x that was drawn from q is kept with the probability min(1, p(x) / q(x)); otherwise the
    token is drawn from max(0, p - q), normalised. Its distribution is then p. A guess that was not
    drawn has q(x) = 1.
    """
    if guessed is None or not isinstance(choosing.method, Sampling):
        return choosing.choose(judged)[0]
    p = probabilities(judged, choosing.method).nan_to_num(1.0)
    guess = torch.tensor([[guessed]], device=p.device)
    q = torch.zeros_like(p).scatter(1, guess, 1.0) if drawn_from is None else drawn_from.to(p)
    kept = torch.rand((), dtype=torch.float64, device=p.device, generator=choosing.random)
    if kept * q[0, guessed] < p[0, guessed]:
        return guess
    rest = (p - q).clamp(min=0.0)
    return draw(rest if bool(rest.any()) else p, choosing.random)
