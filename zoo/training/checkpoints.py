"""Checkpoints: everything that the next step depends on, as safetensors, written atomically.

A checkpoint is a folder, such as `step-00000500`, that gets its name once all of it is on disk. The
tensors are written by `torch.distributed.checkpoint`, each process its own shards; a different
number of processes can read them. A checkpoint has no random state, which at each step depends only
on the seed and the step.
"""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from zoo.errors import TrainingError
from zoo.files.atomic import sync, sync_tree
from zoo.training.checkpoint_state import (
    STATE,
    UNREADABLE,
    checkpoint_of,
    checkpoints,
    read_state,
)
from zoo.training.learner import Learner
from zoo.training.low_rank import updated
from zoo.training.processes import in_first_process
from zoo.wording import quoted

_DISTURBED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
"""What fails if another run removes or makes the folders that this one writes."""
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def write_checkpoint(
    folder: Path,
    step: int,
    learner: Learner,
    state: Mapping[str, Any],
    *,
    keep: int,
    best: int | None,
) -> None:
    """Write a checkpoint, and then remove all but the last `keep` and the best one.

    Args:
        folder: the folder of the run's checkpoints.
        step: the number of updates done.
        learner: the model and the optimiser that are saved.
        state: further data that can be written as JSON.
        keep: the number of checkpoints to keep.
        best: the step of the best checkpoint, if one is chosen.

    Raises:
        TrainingError: it cannot be written, and earlier checkpoints are untouched; or an old one
            cannot be removed.
    """
    path = checkpoint_of(folder, step)
    temporary = folder / f".{path.name}.tmp"
    accelerator = learner.accelerator
    message = f"the checkpoint {quoted(path)} cannot be written"
    with in_first_process(accelerator) as is_first, _failing(message, temporary):
        if is_first:
            for unfinished in folder.glob(".step-*.tmp"):  # of a run that was killed
                shutil.rmtree(unfinished)
            temporary.mkdir(parents=True)
    with _failing(message, temporary):
        # The weights first, by which a model that has computed becomes shards again, as the
        # optimiser knows them.
        weights, of_optimizer = _weights(learner), _optimizer_state(learner)
        save(
            {**weights, **of_optimizer},
            storage_writer=HuggingFaceStorageWriter(str(temporary), save_distributed=True),
            no_dist=accelerator.num_processes == 1,
        )
    with in_first_process(accelerator) as is_first, _failing(message, temporary):
        if is_first:
            known = {"step": step, "unreached": _unreached(learner, of_optimizer), **state}
            (temporary / STATE).write_text(json.dumps(known))
            sync_tree(temporary)
            temporary.rename(path)
            sync(folder)
            for old in checkpoints(folder)[:-keep]:
                if best is None or old != checkpoint_of(folder, best):
                    _remove(old)


def _remove(old: Path) -> None:
    try:
        shutil.rmtree(old)
    except OSError as error:
        message = f"the old checkpoint {quoted(old)} cannot be removed: {error.strerror}"
        hint = "the new one is complete; `--resume` goes on from it"
        raise TrainingError(message, help=hint) from None


def read_checkpoint(path: Path, learner: Learner) -> None:
    """Load a checkpoint into a model and its optimiser.

    Raises:
        TrainingError: it is damaged, or belongs to another model or optimiser.
    """
    weights = _weights(learner)
    with _without_state(read_state(path).get("unreached", []), learner):
        values = _optimizer_state(learner)
        _read_into({**weights, **values}, path, learner)
        whole = get_optimizer_state_dict(learner.model, learner.optimizer, options=_FLAT)
        whole.update(values)
        set_optimizer_state_dict(learner.model, learner.optimizer, whole, options=_FLAT)


def _unreached(learner: Learner, of_optimizer: Mapping[str, Any]) -> list[str]:
    """The names of the weights that are trained and of which the optimiser has no state, as the
    loss has not reached them so far: a pooler beside the head, for one."""
    reached = {key.removeprefix("state.").rpartition(".")[0] for key in of_optimizer}
    return [name for name in _trained(learner) if name not in reached]


def _trained(learner: Learner) -> dict[str, nn.Parameter]:
    model = learner.accelerator.unwrap_model(learner.model)
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@contextmanager
def _without_state(names: Iterable[str], learner: Learner) -> Iterator[None]:
    """Leave these weights without a state while the optimiser gets its first one: torch makes it of
    all weights that have gradients."""
    trained = _trained(learner)
    weights = [trained[name] for name in names if name in trained]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def read_mean(paths: Sequence[Path], learner: Learner) -> None:
    """Load the mean of the weights of several checkpoints into a model (Vaswani et al. 2017,
    section 6.1). Raises as `read_checkpoint`."""
    weights = _weights(learner)
    sums = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for path in paths:
        _read_into(weights, path, learner)
        for name, tensor in weights.items():
            sums[name] += tensor
    for name, tensor in weights.items():
        tensor.copy_(sums[name] / len(paths))


def whole_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """The stored tensors of a model, whole and on the CPU, with the low-rank updates added; every
    process has to call this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: dict[str, Any] = get_model_state_dict(learner.model, options=options)
    weights = {name: tensor for name, tensor in found.items() if name in learner.start.spec.tensors}
    model = learner.accelerator.unwrap_model(learner.model)
    return weights | {name: updated(model, name).cpu() for name in learner.start.adapted}


def _weights(learner: Learner) -> dict[str, Any]:
    """The tensors of a model that training changes, by name and not copied; of a sharded model, its
    shards. The others are in the model that training starts from."""
    found: dict[str, Any] = get_model_state_dict(learner.model)
    changing = learner.changing
    return {name: tensor for name, tensor in found.items() if name in changing}


def _optimizer_state(learner: Learner) -> dict[str, Any]:
    found = get_optimizer_state_dict(learner.model, learner.optimizer, options=_FLAT)
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _read_into(tensors: dict[str, Any], path: Path, learner: Learner) -> None:
    with _failing(f"the checkpoint {quoted(path)} cannot be read"):
        load(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(path)),
            no_dist=learner.accelerator.num_processes == 1,
        )


@contextmanager
def _failing(message: str, temporary: Path | None = None) -> Iterator[None]:
    """Turn errors of reading or writing into one `TrainingError`, and remove the unfinished
    folder. An interruption by the user stays one, which PyTorch takes for an error of writing."""
    try:
        with warnings.catch_warnings():
            # A single process without a process group is a normal case here.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (OSError, ValueError, RuntimeError, CheckpointException) as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        causes = _causes(error)
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            raise KeyboardInterrupt from None
        help = UNREADABLE
        if temporary is not None:
            help = "those before it are untouched; `--resume` goes on from the last"
            if any(getattr(cause, "errno", None) in _DISTURBED for cause in causes):
                help = f"another run may be writing there, and one is to be ended; {help}"
        reasons = "; ".join(dict.fromkeys(map(_reason, causes)))
        raise TrainingError(f"{message}: {reasons}", help=help) from None


def _causes(error: BaseException) -> list[BaseException]:
    """The causes of an error; a `CheckpointException` has one for each process that failed."""
    if isinstance(error, CheckpointException):
        return [cause for cause, _ in error.failures.values()]
    return [error]


def _reason(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0]
