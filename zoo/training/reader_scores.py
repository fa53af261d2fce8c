"""Scores of models that read texts as a whole: how many masked tokens, classes of texts or classes
of words they find, and how near their numbers are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from zoo.errors import TrainingError
from zoo.generation.evaluating import evaluating
from zoo.machine.devices import input_device
from zoo.running.entities import OUTSIDE, marks_entities
from zoo.running.perplexity import OnProgress, perplexity_of
from zoo.training.batches import IGNORED, Labelled, ReadRow, Valued, batches, n_labels
from zoo.training.correlation import pearson, spearman
from zoo.training.example import Example
from zoo.training.f1 import entity_scores, macro_f1, micro_and_macro_f1
from zoo.training.loss import AnyBatch, loss_and_hits, scores
from zoo.training.recipe import Recipe
from zoo.transformer import Transformer

if TYPE_CHECKING:
    from zoo.training.reader_objective import ReaderObjective


@dataclass(frozen=True)
class ReaderScores:
    """Measures a model that reads whole texts.

    Args:
        model: the model.
        objective: what it has learned.
        test: the examples.
        recipe: says how many tokens are computed at a time.
        on_progress: called with the number of rows done, and the total.
    """

    model: Transformer
    objective: ReaderObjective
    test: Sequence[Example]
    recipe: Recipe
    on_progress: OnProgress

    def measured(self) -> dict[str, Any]:
        """The scores of what the model predicts. Raises TrainingError as `of_masked`."""
        match self.objective.tokens.reader.predicts:
            case "masked_tokens":
                return self.of_masked()
            case "class":
                return self.of_classes()
            case "classes":
                return self.of_several()
            case "number":
                return self.of_numbers()
            case "classes_of_words":
                return self.of_words()

    def of_masked(self) -> dict[str, Any]:
        """How well masked tokens of lines are filled in: the share that gets the highest score
        (`accuracy`), and exp of their mean cross-entropy in nats (`masked_perplexity`). They are
        drawn as in the training, and for the same lines are always the same.

        Raises:
            TrainingError: there are none to be drawn.
        """
        rows = self.objective.drawn(self.objective.encode(self.test))
        if not rows:
            raise TrainingError("the texts have special tokens alone, and none to be filled in")
        sums = torch.zeros(2, dtype=torch.float64, device="cpu")
        for _, batch in self._batches(rows):
            sums += loss_and_hits(self.model, batch).cpu()
        n_tokens = n_labels(rows)
        nats, hits = (sums / n_tokens).tolist()
        return {
            "accuracy": hits,
            "masked_perplexity": perplexity_of(nats),
            "masked_tokens": n_tokens,
        }

    def of_classes(self) -> dict[str, Any]:
        """The share of texts that are classified as they are labelled (`accuracy`), and the mean
        over the classes that are found or are right of the F1 score of each (`macro_f1`)."""
        rows = self.objective.encode(self.test)
        right = [row.labels[0] for row in rows if isinstance(row, Labelled)]
        found = [first for first, *_ in self._made(rows, _classes)]
        pairs = list(zip(right, found, strict=True))
        return {
            "accuracy": sum(label == guess for label, guess in pairs) / len(pairs),
            "macro_f1": macro_f1(pairs),
            "texts": len(pairs),
        }

    def of_several(self) -> dict[str, Any]:
        """The `micro_f1` and `macro_f1` of several classes of each text, of which those with a
        probability above 0.5 are found, as `zoo.training.f1.micro_and_macro_f1`."""
        rows, outputs = self._valued()
        right = [[value > 0.5 for value in row.values] for row in rows]
        micro, macro = micro_and_macro_f1(right, [[score > 0 for score in one] for one in outputs])
        return {"micro_f1": micro, "macro_f1": macro, "texts": len(rows)}

    def of_numbers(self) -> dict[str, Any]:
        """The correlations of the numbers that the model makes with those that are right, `pearson`
        and `spearman`, None if all are equal; and the root of the mean squared error (`rmse`)."""
        rows, outputs = self._valued()
        right, found = [row.values[0] for row in rows], [one[0] for one in outputs]
        errors = [(one - other) ** 2 for one, other in zip(right, found, strict=True)]
        return {
            "pearson": pearson(right, found),
            "spearman": spearman(right, found),
            "rmse": math.sqrt(sum(errors) / len(errors)),
            "texts": len(rows),
        }

    def of_words(self) -> dict[str, Any]:
        """The share of words whose label is found (`accuracy`), and if the labels mark entities,
        the `precision`, `recall` and `f1` of `zoo.training.f1.entity_scores`. Words that are cut
        off, and those without a token, are not found: they count as words that are in no entity."""
        names, test = self.objective.labels, self.test
        encoded = self.objective.words(test)
        rows = [Labelled(one.ids, [IGNORED] * len(one.ids)) for one in encoded]
        guessed = [
            [OUTSIDE if at is None else names[classes[at]] for at in one.first]
            for one, classes in zip(encoded, self._made(rows, _classes), strict=True)
        ]
        pairs = [
            (label, guess, at is not None)
            for example, guesses, one in zip(test, guessed, encoded, strict=True)
            for label, guess, at in zip(example.targets, guesses, one.first, strict=True)
        ]
        hits = sum(label == guess and read for label, guess, read in pairs)
        scored: dict[str, Any] = {"accuracy": hits / len(pairs), "words": len(pairs)}
        if marks_entities(names):
            scored |= entity_scores([example.targets for example in test], guessed)._asdict()
        return scored

    def _valued(self) -> tuple[list[Valued], list[list[float]]]:
        """The rows of examples with values, and the model's outputs for each."""
        rows = self.objective.encode(self.test)
        valued = [row for row in rows if isinstance(row, Valued)]
        return valued, [outputs for outputs, *_ in self._made(rows, lambda outputs: outputs)]

    def _made(
        self, rows: Sequence[ReadRow], of_scores: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[list[Any]]:
        """What `of_scores` makes of the model's scores, (labels of the batch, outputs), in a list
        for each row, in their order: of its one label, or of that of each token, those of padding
        included."""
        found: dict[int, list[Any]] = {}
        for places, batch in self._batches(rows):
            made = of_scores(scores(self.model, batch))
            of_rows = made.view(len(places), -1, *made.shape[1:]).tolist()
            found.update(zip(places, of_rows, strict=True))
        return [found[place] for place in range(len(rows))]

    def _batches(self, rows: Sequence[ReadRow]) -> Iterator[tuple[list[int], AnyBatch]]:
        """The batches of rows, each with their places, while the model is in evaluation mode."""
        device, done = input_device(self.model), 0
        with torch.inference_mode(), evaluating(self.model):
            for places in batches(rows, tokens=self.recipe.evaluation.batch_tokens):
                yield places, self.objective.collate([rows[place] for place in places], device)
                done += len(places)
                self.on_progress(done, len(rows))


def _classes(scores: torch.Tensor) -> torch.Tensor:
    """(labels, classes) to the class of each label."""
    return scores.argmax(-1)
