"""What a model that reads whole texts learns: tokens that are masked, the classes of texts or of
words, or numbers."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, cast

import torch

from zoo.errors import TrainingError
from zoo.running.perplexity import OnProgress, unseen
from zoo.training.batches import IGNORED, Labelled, Parts, ReadRow, Valued
from zoo.training.example import Example
from zoo.training.loss import ReadBatch, ValuedBatch, padded, with_mask
from zoo.training.masking import Masker
from zoo.training.reader_scores import ReaderScores
from zoo.training.reader_tokens import Encoded, EncodedWords, ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.split import Splits
from zoo.training.tables import Masking
from zoo.training.tokens import check_not_empty
from zoo.transformer import Transformer


@dataclass(frozen=True)
class ReaderObjective:
    """The objective of a model that reads whole texts. It is one of
    `zoo.training.objective.Objective`, which says what is not said here.

    Args:
        tokens: the tokenizer, which knows what the model predicts.
        max_length: the most tokens of a text that it reads.
        labels: the names of its classes, in their order.
        masking: the recipe's `[masking]`.
    """

    tokens: ReaderTokens
    max_length: int
    labels: Sequence[str] = ()
    masking: Masking = field(default_factory=Masking)

    @property
    def loss_name(self) -> str:
        is_number = self.tokens.reader.predicts == "number"
        return "mean squared error" if is_number else "cross-entropy, nats"

    def encode(self, examples: Sequence[Example], *, packed: bool = False) -> Sequence[ReadRow]:
        """Encode examples.

        A text, or a pair of texts, with a label is truncated to `max_length` tokens, and its class
        is the number of the label in `labels`; with a list of labels, or a number, it has values
        instead. Words with a label each are truncated too, and the first token of each word has the
        class; words without a token in the truncated text are left out, and so are texts without
        such a word. Other text is cut into pieces, each with the special tokens that the tokenizer
        adds. With `packed`, texts with their special tokens are joined in their order, and cut.
        What is predicted of such a text is not drawn yet: its labels are all `IGNORED`. Texts of
        special tokens alone are left out, as nothing could be drawn from them.

        Raises:
            InputError: the tokenizer cannot encode a text.
            TrainingError: no tokens are made of a text with a label, or a number.
        """
        number = {label: place for place, label in enumerate(self.labels)}
        match self.tokens.reader.predicts:
            case "class":
                return [
                    Labelled(one.first, (number[example.target_text],), one.types)
                    for example, one in self._whole(examples)
                ]
            case "classes":
                return [
                    Valued(
                        one.first,
                        [float(label in example.targets) for label in self.labels],
                        one.types,
                    )
                    for example, one in self._whole(examples)
                ]
            case "number":
                return [
                    Valued(one.first, [float(example.target_text)], one.types)
                    for example, one in self._whole(examples)
                ]
            case "classes_of_words":
                rows = (
                    Labelled(one.ids, _at_first(one, [number[label] for label in example.targets]))
                    for example, one in zip(examples, self.words(examples), strict=True)
                )
                return [row for row in rows if row.n_labels]
            case "masked_tokens":
                return [
                    Labelled(ids, array("i", [IGNORED]) * len(ids))
                    for ids in self._pieces(examples, packed=packed)
                    if not self.tokens.special.issuperset(ids)
                ]

    def words(self, examples: Sequence[Example]) -> list[EncodedWords]:
        """Encode the words of examples, truncated to `max_length` tokens."""
        words = [example.words for example in examples]
        return self.tokens.encode_words(words, longest=self.max_length)

    def _whole(self, examples: Sequence[Example]) -> Iterator[tuple[Example, Encoded]]:
        """Encode texts that are read as a whole, each with its example. Raises TrainingError as
        `encode`."""
        texts = [example.texts for example in examples]
        found = self.tokens.encode(texts, longest=self.max_length)
        check_not_empty([example.source_text for example in examples], [one.first for one in found])
        return zip(examples, found, strict=True)

    def _pieces(self, examples: Sequence[Example], *, packed: bool) -> Iterator[Sequence[int]]:
        longest, texts = self.max_length, [example.source_or_text for example in examples]
        found = self.tokens.encode(texts, longest=None if packed else longest)
        if not packed:
            yield from chain.from_iterable((one.first, *one.others) for one in found)
            return
        joined = array("i", chain.from_iterable(one.first for one in found))
        yield from (joined[at : at + longest] for at in range(0, len(joined), longest))

    def texts_of(self, example: Example) -> tuple[str, ...]:
        return example.source_or_text, example.second or ""

    @cached_property
    def masker(self) -> Masker | None:
        """Draws the tokens that are predicted; None if none are masked."""
        if self.tokens.reader.predicts != "masked_tokens":
            return None
        return Masker.of(self.masking, self.tokens)

    def drawn(self, rows: Sequence[ReadRow], *, seed: int = 0, step: int = 0) -> Sequence[ReadRow]:
        if self.masker is None:
            return rows
        return self.masker.drawn(cast("Sequence[Labelled]", rows), seed=seed, step=step)

    def collate(self, rows: Sequence[ReadRow], device: torch.device) -> ReadBatch | ValuedBatch:
        reader = self.tokens.reader
        ids, real = with_mask([row.ids for row in rows], self.tokens.pad)
        arguments: dict[str, torch.Tensor] = {}
        if not bool(real.all()):
            arguments[reader.mask] = real.to(device)
        if any(row.types for row in rows):
            types = [row.types or [0] * row.length for row in rows]
            arguments["token_types"] = padded(types, 0).to(device)
        if isinstance(rows[0], Valued):
            stated = [row.values for row in rows if isinstance(row, Valued)]
            values = torch.tensor(stated, dtype=torch.float64, device="cpu")
            binary = reader.predicts == "classes"
            return ValuedBatch(ids.to(device), arguments, values.to(device), binary)
        labels = padded([row.labels for row in rows if isinstance(row, Labelled)], IGNORED)
        return ReadBatch(ids.to(device), arguments, labels.to(device))

    def measures(self, loss: float, hits: float) -> dict[str, float]:
        if self.tokens.reader.predicts == "number":
            return {"loss": loss, "rmse": math.sqrt(loss)}
        return {"loss": loss, "accuracy": hits}

    def untrained_loss(self, n_outputs: int, examples: Sequence[Example]) -> tuple[float, str]:
        match self.tokens.reader.predicts:
            case "classes":
                return math.log(2), "if each class were as likely as not"
            case "number":
                targets = [float(example.target_text) for example in examples]
                return statistics.pvariance(targets), "with the mean of all targets"
            case predicts:
                what = "tokens" if predicts == "masked_tokens" else "classes"
                return math.log(n_outputs), f"if all {n_outputs:,} {what} were equally likely"

    def notes(self, splits: Splits, rows: Parts) -> Iterator[str]:
        """Notes on what is truncated."""
        what, how = "texts", "truncated"
        if splits.of_pairs:
            what, how = "pairs", "the longer text of each is truncated"
        for name, count in self._truncated(splits, rows).items():
            yield (
                f"{name}: {count:,} of {len(splits.parts[name]):,} {what} are longer than "
                f"max_length = {self.max_length}, and {how}"
            )

    def _truncated(self, splits: Splits, rows: Parts) -> dict[str, int]:
        """The number of texts with labels of each part that are longer than `max_length`, for parts
        that have any."""
        if self.tokens.reader.classes is None:
            return {}
        counts: dict[str, int] = {}
        for (name, examples), kept in zip(splits.parts.items(), rows, strict=True):
            texts = [example.texts for example in examples]
            if len(kept) == len(texts):  # as long as not some have no row, for want of a word
                of_text = zip(texts, kept, strict=True)
                texts = [text for text, row in of_text if row.length == self.max_length]
            if count := self.tokens.n_truncated(texts, longest=self.max_length):
                counts[name] = count
        return counts

    def scores(
        self,
        model: Transformer,
        test: Sequence[Example],
        recipe: Recipe,
        on_progress: OnProgress = unseen,
    ) -> dict[str, Any]:
        return ReaderScores(model, self, test, recipe, on_progress).measured()

    def left_out(self, splits: Splits, rows: Parts) -> dict[str, int]:
        return {}  # texts are truncated

    def no_rows(self, recipe: Recipe, part: str) -> TrainingError | None:
        return recipe.error(f"the tokenizer makes no tokens of the texts of `{part}`", "data", part)


def _at_first(words: EncodedWords, labels: Sequence[int]) -> Sequence[int]:
    """The labels of all tokens, of which the first one of each word has that of the word."""
    found = array("i", [IGNORED]) * len(words.ids)
    for place, label in zip(words.first, labels, strict=True):
        if place is not None:
            found[place] = label
    return found
