"""The training loop: from a model after a number of steps to one after all of them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from zoo.auxiliary import auxiliary_loss
from zoo.errors import Problem, TrainingError
from zoo.sharding.parts import local
from zoo.training.batches import Row, batches, part
from zoo.training.learner import Learner
from zoo.training.objective import collate, n_labels, summed_loss, without_labels
from zoo.training.optimization import set_learning_rate, share_of_peak
from zoo.training.progress import Progress
from zoo.training.recipe import Recipe
from zoo.training.tokens import Tokens

Record = dict[str, float]
"""One line of the log: `step`, `loss`, `learning_rate`, `tokens_per_second` (target tokens), and
`valid_loss` if it was measured."""


@dataclass
class Loop:
    """The updates of one run.

    Args:
        recipe: the number of steps, and how they are done.
        learner: the model and the optimiser.
        tokens: the special ids.
        train, valid: the examples; the same in every process.
        progress: shows each step.
        on_checkpoint: called with the number of steps done whenever a checkpoint is due.
        history: the log so far.
        kept: the number of steps of the last checkpoint; 0 if there is none.
        best: the line of the log of the checkpoint with the lowest held-out loss, the first of
            equals; None if there is none, or if the recipe does not ask for it.
    """

    recipe: Recipe
    learner: Learner
    tokens: Tokens
    train: Sequence[Row]
    valid: Sequence[Row]
    progress: Progress
    on_checkpoint: Callable[[int], None]
    history: list[Record] = field(default_factory=list[Record])
    kept: int = 0
    best: Record | None = None

    def run(self, done: int) -> None:
        """Do the steps after the first `done`.

        Raises:
            TrainingError: the loss is no longer a number; or a checkpoint cannot be written.
        """
        training, self.kept = self.recipe.training, done
        order: list[list[int]] = []
        n_batches = len(self.batches(0))
        loss, n_tokens, since = self.zero(), 0, time.perf_counter()
        for step in range(done + 1, training.steps + 1):
            if self.stopped:
                break
            epoch, place = divmod(step - 1, n_batches)
            if place == 0 or not order:
                order = self.batches(epoch)
            batch = [self.train[index] for index in order[place]]
            loss += self.update(batch, step)
            n_tokens += n_labels(batch)
            is_last = step == training.steps
            kept = is_last or step % training.checkpoint_every == 0
            compared = kept and training.keep == "best"
            due = is_last or compared or step % training.valid_every == 0
            measured = bool(self.valid) and due
            # Also before a checkpoint, so that a resumed run starts with an empty sum of losses.
            if kept or measured or step % training.log_every == 0:
                record = self.record(step, float(loss), n_tokens, time.perf_counter() - since)
                if measured:
                    record["valid_loss"] = self.mean_loss(self.valid)
                if compared and self.is_better(record):
                    self.best = record
                self.history.append(record)
                self.progress.log(record)
                loss, n_tokens, since = self.zero(), 0, time.perf_counter()
            self.progress.advance(step)
            if kept:
                self.check_weights(step)  # waits for the device
                paused = time.perf_counter()
                self.on_checkpoint(step)
                self.kept = step
                since += time.perf_counter() - paused  # not counted in the throughput

    @property
    def stopped(self) -> bool:
        """Whether the run ended at its last checkpoint, as the recipe's `patience` was over."""
        patience = self.recipe.training.patience
        if patience is None or self.best is None:
            return False
        return self.kept - self.best["step"] >= patience

    def is_better(self, record: Record) -> bool:
        """Whether a line of the log has a lower held-out loss than the best checkpoint."""
        return self.best is None or record["valid_loss"] < self.best["valid_loss"]

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, each a list of indices of examples."""
        return batches(
            self.train,
            tokens=self.recipe.training.batch_tokens,
            seed=self.recipe.head.seed,
            epoch=epoch,
        )

    def update(self, batch: Sequence[Row], step: int) -> torch.Tensor:
        """Update the weights once, by one batch that is divided among all processes.

        Each process computes its rows of the batch in `accumulate` parts. All losses are divided by
        the number of tokens of the whole batch, so that the update depends neither on the number of
        processes nor on that of parts. Only the auxiliary loss of a component is computed for each
        part, as it is not a sum over tokens.

        Returns:
            The loss summed over this process' tokens, a scalar.
        """
        training, accelerator = self.recipe.training, self.learner.accelerator
        model, optimizer = self.learner.model, self.learner.optimizer
        model.train()
        self.seed(step)
        set_learning_rate(
            optimizer,
            self.recipe.optimizer.lr * share_of_peak(self.recipe.schedule, step, training.steps),
        )
        # No more rounds than have rows: in one more, all parts would be empty.
        rounds = min(training.accumulate, math.ceil(len(batch) / accelerator.num_processes))
        n_parts = rounds * accelerator.num_processes
        # Gradients are averaged over processes: multiply by their number to get the sum.
        scale = accelerator.num_processes / n_labels(batch)
        total = self.zero()
        for index in range(rounds):
            last = index == rounds - 1
            with nullcontext() if last else accelerator.no_sync(model):
                first = index * accelerator.num_processes
                loss = self.loss(batch, first, n_parts, label_smoothing=training.label_smoothing)
                # A mean over the tokens of this call, so it is weighted by their number.
                share = n_labels(part(batch, first + accelerator.process_index, n_parts))
                accelerator.backward((loss + share * auxiliary_loss(model)) * scale)
            total += loss.detach()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return total

    def loss(
        self, batch: Sequence[Row], first: int, n_parts: int, *, label_smoothing: float
    ) -> torch.Tensor:
        """The summed loss of this process' part of a batch that is cut into `n_parts`. The process
        with index i has part `first + i`."""
        accelerator = self.learner.accelerator
        mine = part(batch, first + accelerator.process_index, n_parts)
        # A process without rows still has to take part in the collective operations.
        tensors = collate(mine or batch[:1], self.tokens, accelerator.device)
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=self.mixed):
            return summed_loss(
                self.learner.model,
                tensors if mine else without_labels(tensors),
                label_smoothing=label_smoothing,
            )

    def seed(self, step: int) -> None:
        """Seed dropout by the recipe's seed, the step and the process alone, so that a resumed run
        draws the same numbers as an uninterrupted one."""
        name = f"{self.recipe.head.seed}/{step}/{self.learner.accelerator.process_index}"
        digest = hashlib.sha256(name.encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little", signed=True))

    def record(self, step: int, loss: float, n_tokens: int, seconds: float) -> Record:
        """Make a line of the log, from this process' loss and the tokens of all processes since the
        last line."""
        mean = self.sum_of(loss) / n_tokens
        if not math.isfinite(mean):
            raise self.diverged(f"the loss is {mean} at step {step:,}")
        return {
            "step": step,
            "loss": mean,
            "learning_rate": self.learner.optimizer.param_groups[0]["lr"],
            "tokens_per_second": n_tokens / seconds,
        }

    @torch.no_grad()
    def check_weights(self, step: int) -> None:
        """Raise `TrainingError` if a weight is not finite, so that no checkpoint has it."""
        shares = map(local, self.learner.model.parameters())
        if self.sum_of(sum(float(not share.isfinite().all()) for share in shares)):
            raise self.diverged(f"some weights are no longer numbers at step {step:,}")

    def diverged(self, message: str) -> TrainingError:
        """The error for a run that has diverged."""
        before = (
            f"; the last checkpoint, of step {self.kept:,}, is from before" if self.kept else ""
        )
        return TrainingError(
            Problem(
                message,
                self.recipe.document.place(("optimizer", "lr"), value=True),
                help=f"lower the learning rate, warm up longer, or state `clip_norm`{before}",
            )
        )

    @torch.no_grad()
    def mean_loss(self, rows: Sequence[Row]) -> float:
        """The mean cross-entropy per token of these rows, in nats, without label smoothing."""
        accelerator = self.learner.accelerator
        self.learner.model.eval()
        loss = self.zero()
        for places in batches(rows, tokens=self.recipe.training.batch_tokens, seed=0, epoch=0):
            batch = [rows[index] for index in places]
            loss += self.loss(batch, 0, accelerator.num_processes, label_smoothing=0.0)
        return self.sum_of(float(loss)) / n_labels(rows)

    @property
    def mixed(self) -> bool:
        """Whether to use mixed precision: bfloat16 where that is safe. It needs no loss scaling."""
        return self.recipe.training.precision == "bfloat16"

    def zero(self) -> torch.Tensor:
        """A zero on the device, to sum losses in."""
        return torch.zeros((), device=self.learner.accelerator.device)

    def sum_of(self, value: float) -> float:
        """The sum of the values of all processes."""
        accelerator = self.learner.accelerator
        tensor = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
        reduced: Any = accelerator.reduce(tensor, "sum")
        return float(reduced)
