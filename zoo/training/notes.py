"""What a run tells its reader: effects of the recipe that are not expected, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from zoo.training.batches import Parts
from zoo.training.data_tables import has_chats
from zoo.training.example import Example
from zoo.training.objective import Objective
from zoo.training.sides import n_outputs
from zoo.training.split import Splits
from zoo.training.start import Start
from zoo.wording import quoted


def notes_before(start: Start, objective: Objective, splits: Splits, rows: Parts) -> Iterator[str]:
    """The notes that are told before the first step.

    Args:
        start: the recipe and its model.
        objective: what the model learns.
        splits: the data.
        rows: the data as ids.
    """
    yield from start.notes
    yield from splits.notes()
    is_chat = has_chats(start.recipe.data)  # a template spells them out
    for name, part in splits.parts.items():
        if not is_chat and (spelled := _spelled_out(part, objective)):
            yield (
                f"{name}: {len(spelled):,} of {len(part):,} examples spell out a special token, "
                f"such as {quoted(spelled[0])}, which is read as the token and not as text"
            )
    yield from objective.notes(splits, rows)
    yield from start.recipe.notes()


def _spelled_out(examples: Sequence[Example], objective: Objective) -> list[str]:
    """The first special token that is spelled out in each example that has one in its texts: the
    tokenizer reads it as the token."""
    tokenizers = objective.tokens.tokenizers
    added = chain.from_iterable(one.get_added_tokens_decoder().values() for one in tokenizers)
    spellings = sorted({re.escape(token.content) for token in added if token.special})
    if not spellings:
        return []
    pattern = re.compile("|".join(spellings))
    texts = ("\n".join(objective.texts_of(example)) for example in examples)
    return [match[0] for text in texts if (match := pattern.search(text))]


def learned_nothing(
    start: Start, objective: Objective, examples: Sequence[Example], last: Mapping[str, float]
) -> str | None:
    """A note, if by the last line of the log the loss is no less than that of a model that has
    learned nothing of these examples, whatever the label smoothing. The loss of training is a mean
    over steps, with dropout: the one on held-out data, if it was measured, may be less already."""
    equal, known_by = objective.untrained_loss(n_outputs(start.sides), examples)
    loss = last["loss"]
    if min(loss, last.get("valid_loss", loss)) < 0.99 * equal or not equal:
        return None
    return (
        f"the loss is {loss:.2f}, and {known_by} it would be {equal:.2f}: the model has learned "
        "nothing. Try another `lr`, a longer `warmup`, more `steps`"
    )
