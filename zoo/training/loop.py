"""The training loop: from a model after a number of steps to one after all of them."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from zoo.auxiliary import auxiliary_loss
from zoo.errors import TrainingError
from zoo.sharding.parts import local
from zoo.training.batches import AnyRow, batches, n_labels, n_tokens, part
from zoo.training.extras import imported
from zoo.training.learner import Learner
from zoo.training.loss import AnyBatch, loss_and_hits, summed_loss, without_labels
from zoo.training.objective import Objective
from zoo.training.optimization import set_learning_rate, share_of_peak
from zoo.training.progress import Progress
from zoo.training.recipe import Recipe

Record = dict[str, float]
"""One line of the log: `step`, `loss`, `learning_rate`, `tokens_per_second` (target tokens, or all
tokens of texts that are read as a whole), and if it was measured, `valid_loss`, and of a model that
reads whole texts `valid_accuracy` or `valid_rmse`."""


@dataclass
class Sums:
    """What was learned from since the last line of the log.

    Args:
        loss: the loss summed over this process' tokens, a scalar on the device.
        began: when that line was written, and later by the time that checkpoints have taken.
        n_predicted: the number of labels of all processes.
        n_tokens: the number of tokens that the throughput counts, of all processes.
    """

    loss: torch.Tensor
    began: float
    n_predicted: int = 0
    n_tokens: int = 0


@dataclass
class Loop:
    """The updates of one run.

    Args:
        learner: the recipe, the model and the optimiser.
        objective: what the model learns.
        train, valid: the examples; the same in every process.
        on_checkpoint: called with the number of steps done whenever a checkpoint is due.
        history: the log so far.
        kept: the number of steps of the last checkpoint; 0 if there is none.
        best: the line of the log of the checkpoint with the lowest held-out loss, the first of
            equals; None if there is none, or if the recipe does not ask for it.
    """

    learner: Learner
    objective: Objective
    train: Sequence[AnyRow]
    valid: Sequence[AnyRow]
    on_checkpoint: Callable[[int], None]
    history: list[Record] = field(default_factory=list[Record])
    kept: int = 0
    best: Record | None = None

    @property
    def recipe(self) -> Recipe:
        """The number of steps, and how they are done."""
        return self.learner.start.recipe

    def run(self, done: int, progress: Progress) -> None:
        """Do the steps after the first `done`, each of which `progress` shows.

        Raises:
            TrainingError: as `update`; the loss is no longer a number; or a checkpoint cannot be
                written.
        """
        training, self.kept = self.recipe.training, done
        order: list[list[int]] = []
        sums = Sums(self.zero(), time.perf_counter())
        for step in range(done + 1, training.steps + 1):
            if self.stopped:
                break
            epoch, place = divmod(step - 1, self.steps_of_epoch)
            if place == 0 or not order:
                order = self.batches(epoch)
            rows = [self.train[index] for index in order[place]]
            batch = self.objective.drawn(rows, seed=self.recipe.head.seed, step=step)
            sums.loss += self.update(batch, step)
            sums.n_predicted += n_labels(batch)
            sums.n_tokens += n_tokens(batch)
            is_last = step == training.steps
            kept = is_last or step % training.checkpoint_every == 0
            compared = kept and training.keep == "best"
            due = is_last or compared or step % training.valid_every == 0
            measured = bool(self.valid) and due
            # Also before a checkpoint, so that a resumed run starts with an empty sum of losses.
            if kept or measured or step % training.log_every == 0:
                record = self.record(step, sums)
                if measured:
                    found = self.measure(self.valid, step)
                    record |= {f"valid_{key}": value for key, value in found.items()}
                if compared and self.is_better(record):
                    self.best = record
                self.history.append(record)
                progress.log(record)
                sums = Sums(self.zero(), time.perf_counter())
            progress.advance(step)
            if kept:
                self.check_weights(step)  # waits for the device
                paused = time.perf_counter()
                self.on_checkpoint(step)
                self.kept = step
                sums.began += time.perf_counter() - paused

    @cached_property
    def steps_of_epoch(self) -> int:
        """The number of steps in which each example is read once; the same for all epochs."""
        return len(self.batches(0))

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

    def update(self, batch: Sequence[AnyRow], step: int) -> torch.Tensor:
        """Update the weights once, by one batch that is divided among all processes.

        Each process computes its rows of the batch in `accumulate` parts. All losses are divided by
        the number of tokens of the whole batch, so that the update depends neither on the number of
        processes nor on that of parts. Only the auxiliary loss of a component is computed for each
        part, as it is not a sum over tokens.

        Returns:
            The loss summed over this process' tokens, a scalar.

        Raises:
            TrainingError: the loss depends on no weight that is trained.
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
        summed = partial(summed_loss, label_smoothing=training.label_smoothing)
        # Gradients are averaged over processes: multiply by their number to get the sum.
        scale = accelerator.num_processes / n_labels(batch)
        total = self.zero()
        for index in range(rounds):
            last = index == rounds - 1
            with nullcontext() if last else accelerator.no_sync(model):
                first = index * accelerator.num_processes
                loss = self.computed(summed, batch, first, n_parts)
                if not loss.requires_grad:
                    raise self.nothing_learned()
                # A mean over the tokens of this call, so it is weighted by their number.
                share = n_labels(part(batch, first + accelerator.process_index, n_parts))
                accelerator.backward((loss + share * auxiliary_loss(model)) * scale)
            total += loss.detach()
        if training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        self.share_buffers()
        return total

    def share_buffers(self) -> None:
        """Give all processes the stored buffers of the first one, such as running statistics, so
        that all measure and save the same model. For shards, nothing else does so; for replicas,
        DDP does it only before the next step."""
        accelerator, stored = self.learner.accelerator, self.learner.start.spec.tensors
        if accelerator.num_processes == 1:
            return
        model = accelerator.unwrap_model(self.learner.model)
        buffers = [buffer for name, buffer in model.named_buffers() if name in stored]
        imported("accelerate.utils").broadcast(buffers)

    def computed(
        self,
        compute: Callable[[nn.Module, AnyBatch], torch.Tensor],
        batch: Sequence[AnyRow],
        first: int,
        n_parts: int,
    ) -> torch.Tensor:
        """What `compute` returns for this process' part of a batch that is cut into `n_parts`. The
        process with index i has part `first + i`."""
        accelerator = self.learner.accelerator
        mine = part(batch, first + accelerator.process_index, n_parts)
        # A process without rows still has to take part in the collective operations.
        tensors = self.objective.collate(mine or batch[:1], accelerator.device)
        # bfloat16 needs no loss scaling.
        mixed = self.recipe.training.precision == "bfloat16"
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=mixed):
            return compute(self.learner.model, tensors if mine else without_labels(tensors))

    def seed(self, step: int) -> None:
        """Seed dropout by the recipe's seed, the step and the process alone, so that a resumed run
        draws the same numbers as an uninterrupted one."""
        name = f"{self.recipe.head.seed}/{step}/{self.learner.accelerator.process_index}"
        digest = hashlib.sha256(name.encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little", signed=True))

    def record(self, step: int, sums: Sums) -> Record:
        """Make a line of the log."""
        seconds = time.perf_counter() - sums.began
        mean = self.sum_of(float(sums.loss)) / sums.n_predicted
        if not math.isfinite(mean):
            raise self.diverged(f"the loss is {mean}", step)
        return {
            "step": step,
            "loss": mean,
            "learning_rate": self.learner.optimizer.param_groups[0]["lr"],
            "tokens_per_second": sums.n_tokens / seconds,
        }

    @torch.no_grad()
    def check_weights(self, step: int) -> None:
        """Raise `TrainingError` if a weight is not finite, so that no checkpoint has it."""
        shares = map(local, self.learner.model.parameters())
        if self.sum_of(sum(float(not share.isfinite().all()) for share in shares)):
            raise self.diverged("some weights are no longer numbers", step)

    def nothing_learned(self) -> TrainingError:
        """The error for a run whose loss depends on frozen weights alone."""
        message = "all weights that the loss depends on are frozen, and none is left to train"
        path = ("training", "frozen") if self.recipe.lora is None else ("lora", "weights")
        return self.recipe.error(message, *path)

    def diverged(self, message: str, step: int) -> TrainingError:
        """The error for a run that has diverged, as is seen at this step."""
        before = ""
        if 0 < self.kept < step:
            before = f"; the last checkpoint, of step {self.kept:,}, is from before"
        hint = f"lower the learning rate, warm up longer, or state `clip_norm`{before}"
        return self.recipe.error(f"{message} at step {step:,}", "optimizer", "lr", help=hint)

    @torch.no_grad()
    def measure(self, rows: Sequence[AnyRow], step: int) -> dict[str, float]:
        """Measure the model, as it is after this step, on held-out rows: `loss`, the mean
        cross-entropy per label, in nats, without label smoothing; and for a model that reads whole
        texts `accuracy`, the share of labels that have the highest score, or of several classes the
        share that is right of the decisions about each. For numbers, `loss` is the mean squared
        error, and `rmse` its root.

        Raises:
            TrainingError: the loss is not a number. That of the step itself was computed before the
                weights were changed.
        """
        accelerator = self.learner.accelerator
        self.learner.model.eval()
        sums = torch.zeros(2, dtype=torch.float32, device=accelerator.device)
        for places in batches(rows, tokens=self.recipe.training.batch_tokens):
            batch = [rows[index] for index in places]
            sums += self.computed(loss_and_hits, batch, 0, accelerator.num_processes)
        loss, hits = (self.sum_of(float(one)) / n_labels(rows) for one in sums)
        if not math.isfinite(loss):
            raise self.diverged(f"the loss on held-out data is {loss}", step)
        return self.objective.measures(loss, hits)

    def zero(self) -> torch.Tensor:
        """A zero on the device, to sum losses in."""
        return torch.zeros((), dtype=torch.float32, device=self.learner.accelerator.device)

    def sum_of(self, value: float) -> float:
        """The sum of the values of all processes."""
        accelerator = self.learner.accelerator
        tensor = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
        reduced: Any = accelerator.reduce(tensor, "sum")
        return float(reduced)
