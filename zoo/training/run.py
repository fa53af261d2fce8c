"""One training run in its folder: its steps, its checkpoints, and its results."""

from __future__ import annotations

import json
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import torch

from zoo.building import build_on_meta, place
from zoo.errors import TrainingError
from zoo.families.origin import with_files
from zoo.files.atomic import write_text
from zoo.files.of_model import RECIPE, WEIGHTS
from zoo.files.of_training import CHECKPOINTS, METRICS, PLOT
from zoo.saving import save
from zoo.training.batches import Parts
from zoo.training.changes import check_same_run, identity
from zoo.training.checkpoint_state import checkpoint_of, checkpoints, read_state
from zoo.training.checkpoints import read_checkpoint, read_mean, whole_weights, write_checkpoint
from zoo.training.learner import Learner
from zoo.training.loop import Loop
from zoo.training.notes import learned_nothing, notes_before
from zoo.training.objective import Objective
from zoo.training.plot import plot_losses
from zoo.training.processes import in_first_process
from zoo.training.progress import progress_of
from zoo.training.split import Splits
from zoo.transformer import Transformer
from zoo.weights.dtypes import beyond_range, n_beyond, usable_dtype
from zoo.wording import counted, quoted


class Run:
    """One run.

    Args:
        folder: where checkpoints and results are written.
        learner: the recipe, the model and the optimiser.
        objective: what the model learns.
        splits: the data.
        rows: the data as ids.
    """

    def __init__(
        self,
        folder: Path,
        learner: Learner,
        objective: Objective,
        splits: Splits,
        rows: Parts,
    ) -> None:
        self.folder, self.learner, self.splits, self.rows = folder, learner, splits, rows
        self.objective = objective
        self.start = learner.start
        self.recipe = self.start.recipe
        self.loop = Loop(learner, objective, rows.train, rows.valid, self.checkpoint)

    def learn(self, *, resume: bool) -> None:
        """Do all steps, or with `resume` those after the last checkpoint."""
        training = self.recipe.training
        done = self.resume() if resume else 0
        with in_first_process(self.learner.accelerator) as speaks:
            if speaks:
                write_text(self.folder / RECIPE, self.recipe.text)
                for note in notes_before(self.start, self.objective, self.splits, self.rows):
                    click.echo(note, err=True)
                click.echo(self.length(), err=True)
        name = self.recipe.head.name
        shown = progress_of(name, done, training.steps, speaks=speaks)
        with shown as progress, warnings.catch_warnings():
            # A view is what a linear map returns; nothing is written into it.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* view tensor")
            self.loop.run(done, progress)
        if not speaks:
            return
        if self.loop.kept < training.steps:
            click.echo(self.patience_over(), err=True)
        examples, last = self.splits.train, self.loop.history[-1]
        if failing := learned_nothing(self.start, self.objective, examples, last):
            click.echo(failing, err=True)

    def length(self) -> str:
        """The note that says how often the run reads its examples."""
        steps, of_epoch = self.recipe.training.steps, self.loop.steps_of_epoch
        examples = counted(len(self.rows.train), "example")
        return (
            f"an epoch is {counted(of_epoch, 'step')}, of {examples}: "
            f"steps = {steps:,} are {steps / of_epoch:,.2f} epochs"
        )

    def patience_over(self) -> str:
        """The note that `patience` has ended the run."""
        best = self.loop.best
        assert best is not None  # the checkpoint that the others are compared with
        return (
            f"ended at step {self.loop.kept:,}: no checkpoint since that of step "
            f"{best['step']:,.0f} has a lower held-out loss than {best['valid_loss']:.4f}"
        )

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint of everything that the next step depends on."""
        write_checkpoint(
            self.folder / CHECKPOINTS,
            step,
            self.learner,
            {"run": self.identity, "history": self.loop.history, "best": self.loop.best},
            keep=self.recipe.training.average,
            best=self.best_step,
        )

    def resume(self) -> int:
        """Load the last checkpoint, and return the number of steps done.

        Raises:
            TrainingError: it is damaged, belongs to another run, or has more steps than the recipe.
        """
        found = checkpoints(self.folder / CHECKPOINTS)
        if not found:
            return 0
        state = read_state(found[-1])
        check_same_run(state["run"], self.identity, self.recipe, found[-1])
        done, steps = int(state["step"]), self.recipe.training.steps
        if done > steps:
            message = f"the last checkpoint is of {done:,} steps, more than `steps = {steps}`"
            hint = "a run can be made longer, not shorter"
            raise self.recipe.error(message, "training", "steps", help=hint)
        self.loop.history, self.loop.best = state["history"], state.get("best")
        if self.best_step is not None:
            best = checkpoint_of(self.folder / CHECKPOINTS, self.best_step)
            if best not in found:
                message = f"the best checkpoint so far, {quoted(best)}, is missing"
                raise TrainingError(message, help="begin anew with another `-o`")
        read_checkpoint(found[-1], self.learner)
        return done

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint, if the recipe asks for it and there is one."""
        return None if self.loop.best is None else int(self.loop.best["step"])

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        # Which checkpoint is the best one depends on the held-out data too.
        chooses = self.recipe.training.keep == "best"
        deciding = [*self.rows.train, *self.rows.valid] if chooses else self.rows.train
        return identity(self.start, deciding)

    def finish(self) -> dict[str, Any] | None:
        """Write the model and its metrics; the first process returns the metrics."""
        folder = self.folder / CHECKPOINTS
        if self.best_step is None:
            chosen = checkpoints(folder)[-self.recipe.training.average :]
        else:
            chosen = [checkpoint_of(folder, self.best_step)]
        read_mean(chosen, self.learner)
        metrics = self.metrics()
        weights = whole_weights(self.learner)
        if not self.learner.accelerator.is_main_process:
            return None
        model = self.result(weights)
        metrics["content_digest"] = save(model, self.folder)
        if self.splits.test:
            on_device = model.float().to(self.learner.accelerator.device)
            metrics |= self.objective.scores(on_device, self.splits.test, self.recipe)
        what = self.objective.loss_name
        plot_losses(self.loop.history, self.recipe.head.name, what, self.folder / PLOT)
        history = {"history": self.loop.history}
        write_text(self.folder / METRICS, json.dumps(metrics | history, indent=1) + "\n")
        return metrics

    def metrics(self) -> dict[str, Any]:
        parts = self.rows._asdict()
        tensors = self.start.spec.tensors
        return {
            "name": self.recipe.head.name,
            "path": str(self.folder / WEIGHTS),
            "parameters": self.start.spec.n_parameters,
            "frozen_parameters": sum(tensors[name].size for name in self.start.frozen),
            **({} if self.recipe.lora is None else {"lora_parameters": self.n_in_updates()}),
            "steps": self.loop.kept,
            "epochs": self.loop.kept / self.loop.steps_of_epoch,
            **({} if self.best_step is None else {"best_step": self.best_step}),
            "processes": self.learner.accelerator.num_processes,
            "data_digest": self.splits.digest,
            "examples": {name: len(rows) for name, rows in parts.items()},
            "left_out": self.objective.left_out(self.splits, self.rows),
            "loss": (self.loop.best or self.loop.history[-1])["loss"],
            **{
                f"{name}_{key}": value
                for name, rows in parts.items()
                if name != "train" and rows
                for key, value in self.loop.measure(rows, self.loop.kept).items()
            },
        }

    def n_in_updates(self) -> int:
        """The number of elements of the factors of all low-rank updates."""
        assert self.recipe.lora is not None
        tensors = self.start.spec.tensors
        return self.recipe.lora.rank * sum(sum(tensors[name].shape) for name in self.start.adapted)

    def result(self, weights: dict[str, torch.Tensor]) -> Transformer:
        """The trained model, unwrapped, on the CPU, in the dtype of the recipe.

        Raises:
            TrainingError: this dtype cannot hold a value.
        """
        dtype = usable_dtype(self.recipe.head.dtype)
        cast = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in weights.items()
        }
        beyond = [
            beyond_range(n_values, name, dtype, self.recipe.place("dtype"))._replace(
                help='state "float32" or "bfloat16", and go on by `--resume`: all steps are done',
            )
            for name, tensor in weights.items()
            if (n_values := n_beyond(tensor, cast[name]))
        ]
        if beyond:
            raise TrainingError(beyond)
        model = place(build_on_meta(self.start.spec, dtype), cast, device="cpu").eval()
        origin = self.start.origin
        model.origin = None if origin is None else with_files(origin, self.folder)
        return model
