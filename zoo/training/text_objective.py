"""What a model that generates learns: each token of a target, from those before it and the source
if there is one."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch

from zoo.errors import TrainingError
from zoo.running.perplexity import OnProgress, unseen
from zoo.running.tokenizer_file import encoded
from zoo.training.batches import IGNORED, Parts, Row
from zoo.training.example import Example
from zoo.training.loss import Batch, padded, with_mask
from zoo.training.recipe import Recipe
from zoo.training.split import Splits
from zoo.training.text_scores import TextScores
from zoo.training.tokens import Tokens, check_not_empty
from zoo.transformer import Transformer
from zoo.wording import quoted


@dataclass(frozen=True)
class TextObjective:
    """The objective of a model that generates. It is one of `zoo.training.objective.Objective`,
    which says what is not said here.

    Args:
        tokens: the tokenizers.
        max_length: the most tokens of a side that it learns at a time.
    """

    tokens: Tokens
    max_length: int
    loss_name = "cross-entropy, nats"

    def encode(self, examples: Sequence[Example], *, packed: bool = False) -> list[Row]:
        """Encode examples as ids. Pairs with a side longer than `max_length`, begin or end
        included, are left out, and so are prompts with their answers, and chats. Text is cut into
        pieces, the last of which has the end token. With `packed`, texts are joined in their order
        before they are cut, so that all rows but the last are equally long; one token between two
        texts both ends and begins, if these tokens are the same.

        Raises:
            InputError: the tokenizer cannot encode a text.
            TrainingError: no tokens are made of a source, or of a prompt with its answer.
        """
        if not examples or examples[0].source is None:
            return self._pieces(self._targets(examples), packed=packed)
        rows = self.answers(examples) if self.tokens.of_decoder else self._pairs(examples)
        return [row for row in rows if row.length <= self.max_length]

    def _targets(self, examples: Sequence[Example]) -> list[array[int]]:
        """The ids of targets, or texts, with begin and end."""
        tokens = self.tokens
        found = tokens.encode_targets([example.target_text for example in examples])
        return [array("i", [*tokens.begin, *ids, tokens.eos]) for ids in found]

    def _pieces(self, texts: list[array[int]], *, packed: bool) -> list[Row]:
        """Cut texts into pieces in which `max_length` tokens are predicted, each in one piece."""
        if packed:
            one_for_both = self.tokens.bos == self.tokens.eos
            each = (ids[one_for_both and number > 0 :] for number, ids in enumerate(texts))
            texts = [array("i", chain.from_iterable(each))]
        longest = self.max_length
        return [
            Row(None, ids[start : start + longest + 1])
            for ids in texts
            for start in range(0, len(ids) - 1, longest)
        ]

    def _pairs(self, examples: Sequence[Example]) -> Iterator[Row]:
        targets = self._targets(examples)
        texts = [example.source_text for example in examples]
        sources = self.tokens.encode_sources(texts)
        check_not_empty(texts, sources)
        return (Row(source, target) for source, target in zip(sources, targets, strict=True))

    def answers(self, examples: Sequence[Example]) -> list[Row]:
        """Encode prompts and their answers, or chats, of any length, for a decoder that learns the
        answers.

        A prompt and its answer are one text. Its ids are those that `zoo run` makes of it, with the
        special tokens that the tokenizer puts before a text, and the end token behind it. In a
        chat, the template has written these. A token that belongs to the prompt and the answer is
        learned. Raises as `encode`.
        """
        pieces = [
            tuple(chain.from_iterable(zip(one.prompts, one.targets, strict=True)))
            for one in examples
        ]
        chats = examples[0].opening is not None
        texts = ["".join(one) for one in pieces]
        found = encoded(self.tokens.target, texts, add_special_tokens=not chats)
        end = [] if chats else [self.tokens.eos]
        rows = [
            _learned(encoding, [*accumulate(map(len, one))], end)
            for encoding, one in zip(found, pieces, strict=True)
        ]
        check_not_empty(texts, [row.target[: len(row.target) - len(end)] for row in rows])
        return rows

    def texts_of(self, example: Example) -> tuple[str, ...]:
        return example.source_text, example.target_text

    def drawn(self, rows: Sequence[Row], *, seed: int = 0, step: int = 0) -> Sequence[Row]:
        return rows  # nothing is

    def collate(self, rows: Sequence[Row], device: torch.device) -> Batch:
        source = None
        if rows[0].source is not None:
            ids, real = with_mask([row.source or () for row in rows], self.tokens.source_pad)
            source = ids.to(device), real.to(device)
        inputs, real = with_mask([row.target[:-1] for row in rows], self.tokens.pad)
        labels = padded([row.predicted for row in rows], IGNORED)
        mask = None if bool(real.all()) else real.to(device)
        return Batch(source, inputs.to(device), mask, labels.to(device))

    def measures(self, loss: float, hits: float) -> dict[str, float]:
        return {"loss": loss}

    def untrained_loss(self, n_outputs: int, examples: Sequence[Example]) -> tuple[float, str]:
        return math.log(n_outputs), f"if all {n_outputs:,} tokens were equally likely"

    def notes(self, splits: Splits, rows: Parts) -> Iterator[str]:
        """Notes on prompts and answers, on chats, and on what is left out."""
        yield from self._joined(splits.train)
        yield from self._endless(rows.train)
        for name, count in self.left_out(splits, rows).items():
            part = splits.parts[name]
            told = f"{name}: {count:,} of {len(part):,} {part[0].unit}s are left out"
            if name == "test" and not self.tokens.of_decoder:
                told += " of the loss, and truncated for BLEU"
            yield f"{told}, as longer than max_length = {self.max_length}"

    def _joined(self, examples: Sequence[Example]) -> Iterator[str]:
        """A note, if no answer is set apart from its prompt by white space."""
        first = examples[0]
        if not self.tokens.of_decoder or first.source is None or first.opening is not None:
            return
        edges = [(one.source_text[-1:], one.target_text[:1]) for one in examples]
        if not any(before.isspace() or after.isspace() for before, after in edges):
            shown = quoted(first.source_text[-20:] + first.target_text[:20])
            yield f"train: no white space is between prompts and answers: the first are {shown}"

    def _endless(self, rows: Sequence[Row]) -> Iterator[str]:
        """A note, if the tokenizer makes other tokens of the end of an answer in a chat."""
        learned = [row.labels for row in rows if row.labels is not None]
        if count := sum(self.tokens.eos not in labels for labels in learned):
            yield (
                f"train: in {count:,} of {len(rows):,} texts the tokenizer does not read "
                f"{quoted(self.tokens.end)} as one token, so that no answer there ends"
            )

    def scores(
        self,
        model: Transformer,
        test: Sequence[Example],
        recipe: Recipe,
        on_progress: OnProgress = unseen,
    ) -> dict[str, Any]:
        return TextScores(model, self, test, recipe, on_progress).measured()

    def left_out(self, splits: Splits, rows: Parts) -> dict[str, int]:
        """The pairs, or texts of chats, that are longer than `max_length`. Text is cut instead."""
        counts = {
            name: len(examples) - len(kept)
            for (name, examples), kept in zip(splits.parts.items(), rows, strict=True)
            if examples and examples[0].source is not None
        }
        return {name: count for name, count in counts.items() if count}

    def no_rows(self, recipe: Recipe, part: str) -> TrainingError | None:
        if part == "valid" and recipe.training.keep != "best":
            return None
        if part == "test" and not self.tokens.of_decoder:
            return None  # of pairs that are translated, each side is truncated
        names = {"train": "example", "valid": "held-out example", "test": "test example"}
        return self.none_fits(recipe, names[part])

    def none_fits(self, recipe: Recipe, which: str) -> TrainingError:
        """The error that all examples of a part are longer than `max_length`."""
        message = f"no {which} is short enough: all are longer than max_length = {self.max_length}"
        hint = "state a larger `max_length` in `[training]`"
        return recipe.error(message, "training", "max_length", help=hint)


def _learned(encoding: Any, ends: Sequence[int], end: Sequence[int]) -> Row:
    """A text whose answers are learned.

    Args:
        encoding: the text, as its tokenizer encodes it.
        ends: where its pieces end: prompts and answers in turns.
        end: the id that is put behind it.
    """
    n = len(encoding.ids)
    while n and encoding.special_tokens_mask[n - 1]:
        n -= 1  # the tokenizer's own end
    ids, stops = array("i", encoding.ids[:n]), [stop for _, stop in encoding.offsets[:n]]
    labels = array("i", [IGNORED]) * n
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        # An end token may also have taken the white space behind it, and the bytes of a character
        # may be tokens that all stop with it.
        after = max(bisect_left(stops, last) + 1, bisect_right(stops, last))
        learned = slice(bisect_right(stops, first), after)
        labels[learned] = ids[learned]
    return Row(None, ids + array("i", end), labels + array("i", end))
