"""What a model learns by a recipe, and how its data becomes batches.

There are two objectives: that of models that generate (`TextObjective`), and that of models that
read whole texts (`ReaderObjective`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from zoo.errors import TrainingError
from zoo.running.perplexity import OnProgress, unseen
from zoo.training.batches import AnyRow, Parts
from zoo.training.data_tables import is_packed
from zoo.training.example import Example
from zoo.training.loss import AnyBatch
from zoo.training.reader_objective import ReaderObjective
from zoo.training.reader_tokens import ReaderTokens
from zoo.training.recipe import Recipe
from zoo.training.split import Splits
from zoo.training.text_objective import TextObjective
from zoo.training.tokens import AnyTokens
from zoo.transformer import Transformer


class Objective(Protocol):
    """What a model learns. Its rows are those that it has encoded itself."""

    @property
    def tokens(self) -> AnyTokens:
        """The tokenizers."""

    @property
    def loss_name(self) -> str:
        """What the loss is, in words."""

    def encode(self, examples: Sequence[Example], *, packed: bool = False) -> Sequence[AnyRow]:
        """Encode examples as ids; with `packed`, texts are joined and cut."""

    def texts_of(self, example: Example) -> tuple[str, ...]:
        """What the tokenizers read of an example."""

    def drawn(self, rows: Sequence[Any], *, seed: int = 0, step: int = 0) -> Sequence[AnyRow]:
        """The rows with what is predicted of them in a step of the training, which count from 1; or
        by default, where they are held out: always the same, so that losses compare."""

    def collate(self, rows: Sequence[Any], device: torch.device) -> AnyBatch:
        """Turn rows into one batch, each side padded to its longest row."""

    def measures(self, loss: float, hits: float) -> dict[str, float]:
        """What is measured on held-out rows, by its names in the log, from the mean loss and the
        share of labels that have the highest score."""

    def untrained_loss(self, n_outputs: int, examples: Sequence[Example]) -> tuple[float, str]:
        """The loss of a model that scores so many tokens or classes and has learned nothing of
        these examples; and when it is that, in words."""

    def notes(self, splits: Splits, rows: Parts) -> Iterator[str]:
        """Notes on what a reader of the recipe may not expect of the data as ids."""

    def scores(
        self,
        model: Transformer,
        test: Sequence[Example],
        recipe: Recipe,
        on_progress: OnProgress = unseen,
    ) -> dict[str, Any]:
        """Measure a model on test data, as the recipe says; `on_progress` is called with the number
        of rows done, and the total. Raises TrainingError if there is nothing to measure."""

    def left_out(self, splits: Splits, rows: Parts) -> dict[str, int]:
        """The number of examples of each part that are too long to be learned, for parts that have
        any."""

    def no_rows(self, recipe: Recipe, part: str) -> TrainingError | None:
        """The error that all examples of a part are left out; None if a run can do without it."""


def objective_of(recipe: Recipe, tokens: AnyTokens, labels: Sequence[str]) -> Objective:
    """The objective of a recipe whose model has these tokenizers and, if it classifies, labels."""
    longest = recipe.training.max_length
    if isinstance(tokens, ReaderTokens):
        return ReaderObjective(tokens, longest, labels, recipe.masking)
    return TextObjective(tokens, longest)


def encode_parts(splits: Splits, objective: Objective, recipe: Recipe) -> Parts:
    """Encode all data of a recipe. What is predicted of the training data is not drawn yet. Texts
    of `test` are measured one by one, as by `zoo score`, and so are not packed. Raises as the
    `encode` of the objective."""
    packed = is_packed(recipe.data)
    return Parts(
        train=objective.encode(splits.train, packed=packed),
        valid=objective.drawn(objective.encode(splits.valid, packed=packed)),
        test=objective.drawn(objective.encode(splits.test)),
    )
