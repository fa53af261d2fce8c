"""What a run tells its reader: effects of the recipe that are not expected, and how it ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from zoo.training.batches import Row
from zoo.training.data_tables import messages_of
from zoo.training.encoding import Parts, special_spellings
from zoo.training.labels import labels_in
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.sides import Reader, n_outputs
from zoo.training.split import Splits
from zoo.training.start import Start
from zoo.training.tokens import AnyTokens
from zoo.wording import quoted


@dataclass(frozen=True)
class Notes:
    """The notes on one run.

    Args:
        start: the recipe and its model.
        tokens: the tokenizers.
        splits: the data.
        rows: the data as ids.
    """

    start: Start
    tokens: AnyTokens
    splits: Splits
    rows: Parts

    def before(self) -> Iterator[str]:
        """Those that are told before the first step."""
        longest = self.start.recipe.training.max_length
        yield from self.start.notes
        yield from self.splits.notes()
        is_chat = messages_of(self.start.recipe.data) is not None  # a template spells them out
        for name, part in self.splits.parts.items():
            if not is_chat and (spelled := special_spellings(part, self.tokens)):
                yield (
                    f"{name}: {len(spelled):,} of {len(part):,} examples spell out a special "
                    f"token, such as {quoted(spelled[0])}, which is read as the token and not as "
                    "text"
                )
        yield from self.joined()
        yield from self.endless()
        for name, count in self.left_out().items():
            part = self.splits.parts[name]
            yield (
                f"{name}: {count:,} of {len(part):,} {part[0].unit}s are left out, as longer than "
                f"max_length = {longest}"
            )
        what, how = "texts", "truncated"
        if self.splits.of_pairs:
            what, how = "pairs", "the longer text of each is truncated"
        for name, count in self.truncated().items():
            yield (
                f"{name}: {count:,} of {len(self.splits.parts[name]):,} {what} are longer than "
                f"max_length = {longest}, and {how}"
            )
        yield from self.start.recipe.notes()

    def joined(self) -> Iterator[str]:
        """A note, if no answer is set apart from its prompt by white space."""
        first, tokens = self.splits.train[0], self.tokens
        if isinstance(tokens, ReaderTokens) or not tokens.of_decoder:
            return
        if first.source is None or first.opening is not None:
            return
        edges = [(one.source_text[-1:], one.target_text[:1]) for one in self.splits.train]
        if not any(before.isspace() or after.isspace() for before, after in edges):
            shown = quoted(first.source_text[-20:] + first.target_text[:20])
            yield f"train: no white space is between prompts and answers: the first are {shown}"

    def endless(self) -> Iterator[str]:
        """A note, if the tokenizer makes other tokens of the end of an answer in a chat."""
        rows, tokens = self.rows.train, self.tokens
        if isinstance(tokens, ReaderTokens):
            return
        learned = [row.labels for row in rows if isinstance(row, Row) and row.labels is not None]
        if count := sum(tokens.eos not in labels for labels in learned):
            yield (
                f"train: in {count:,} of {len(rows):,} texts the tokenizer does not read "
                f"{quoted(tokens.end)} as one token, so that no answer there ends"
            )

    def left_out(self) -> dict[str, int]:
        """The number of pairs, or texts of chats, of each part that are longer than `max_length`,
        for parts that have any. Text is cut instead, and texts with labels are truncated."""
        if isinstance(self.tokens, ReaderTokens):
            return {}
        counts = {
            name: len(examples) - len(kept)
            for (name, examples), kept in zip(self.splits.parts.items(), self.rows, strict=True)
            if examples and examples[0].source is not None
        }
        return {name: count for name, count in counts.items() if count}

    def truncated(self) -> dict[str, int]:
        """The number of texts with labels of each part that are longer than `max_length`, for parts
        that have any."""
        tokens, longest = self.tokens, self.start.recipe.training.max_length
        if not isinstance(tokens, ReaderTokens) or tokens.reader.classes is None:
            return {}
        counts: dict[str, int] = {}
        for (name, examples), rows in zip(self.splits.parts.items(), self.rows, strict=True):
            texts = [example.texts for example in examples]
            if len(rows) == len(texts):  # as long as not some have no row, for want of a word
                of_text = zip(texts, rows, strict=True)
                texts = [text for text, row in of_text if row.length == longest]
            if count := tokens.n_truncated(texts, longest=longest):
                counts[name] = count
        return counts

    def learned_nothing(self, loss: float) -> str | None:
        """A note, if the last loss is no less than that of a model that scores all tokens or
        classes equally, whatever the label smoothing."""
        sides = self.start.sides
        number = n_outputs(sides)
        equal, what = math.log(number), "classes" if labels_in(self.start) else "tokens"
        known_by = f"if all {number:,} {what} were equally likely"
        if isinstance(sides, Reader) and sides.predicts == "classes":
            equal, known_by = math.log(2), "if each class were as likely as not"
        elif isinstance(sides, Reader) and sides.predicts == "number":
            targets = [float(example.target_text) for example in self.splits.train]
            equal, known_by = statistics.pvariance(targets), "with the mean of all targets"
        if loss < 0.99 * equal or not equal:
            return None
        return (
            f"the loss is {loss:.2f}, and {known_by} it would "
            f"be {equal:.2f}: the model has learned nothing. Try another `lr`, a longer `warmup`, "
            "more `steps`"
        )
