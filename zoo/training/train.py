"""`train`: from a recipe to a trained model in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ZooError
from zoo.files.of_model import RECIPE
from zoo.files.of_training import CHECKPOINTS, LOCK
from zoo.registry import Registry, in_force
from zoo.store.collecting import NO_GRACE, sweep
from zoo.training.batches import Parts
from zoo.training.checkpoint_state import checkpoints
from zoo.training.companions import write_companions
from zoo.training.extras import check_installed
from zoo.training.labels import labels_in, with_labels
from zoo.training.learner import Learner
from zoo.training.lock import alone_in
from zoo.training.objective import Objective, encode_parts, objective_of
from zoo.training.optimization import make_optimizer
from zoo.training.processes import (
    check_same_in_all,
    in_first_process,
    make_accelerator,
    make_model,
)
from zoo.training.recipe import Recipe, read_recipe
from zoo.training.recipe_data import check_sides, check_specials, find_chats, find_data
from zoo.training.recipe_tokens import make_tokens
from zoo.training.run import Run
from zoo.training.split import Splits
from zoo.training.start import Start, find_start
from zoo.training.tokens import AnyTokens, read_tokens
from zoo.weights.file import weights_path
from zoo.weights.output_names import check_output_name
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.training.chats import Chats


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    output: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    registry: Registry | None = None,
) -> dict[str, Any] | None:
    """Train a model by a recipe.

    The folder gets `model.safetensors`, which `zoo.load` reads, `tokenizer.json`, the recipe,
    `metrics.json` and `loss.svg`, and the last of `checkpoints/`. The same recipe runs in one
    process and in many, started by `torchrun` or `accelerate launch`.

    Args:
        recipe: a TOML file, TOML text (a string of more than one line), plain data, or a recipe
            that was read. The files that text and data name are relative to the working directory.
        output: the folder; by default the recipe's name, in the working directory.
        data: the folder that the names of data files are relative to; by default the recipe's.
        resume: continue from the last checkpoint in the folder, or begin if there is none. On one
            machine, the weights are bit by bit those of an uninterrupted run.
        registry: where names are looked up; by default the layers around the working directory.

    Returns:
        The contents of `metrics.json` without the log: losses, score, digest. If there are several
        processes, all but the first return None.

    Raises:
        SpecError: the recipe or the model's spec is wrong.
        TrainingError: a package of the extra `train` is not installed; the data or the tokenizer
            is wrong; the processes were not all given the same; or the run fails.
        ZooError: the folder holds another run, or one that goes on; is named as a file; or cannot
            be written.
    """
    registry = in_force(registry)
    found = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    check_installed()
    folder = Path(found.head.name if output is None else output)
    check_output_name(folder, folder=True)
    _refuse_unreadable(folder)
    start = find_start(found, registry)
    data_folder = found.folder if data is None else Path(data)
    chats = find_chats(start)
    splits = find_data(found, data_folder, start.sides, chats)
    check_sides(found, start.sides, splits.train[0])
    start = with_labels(start, splits, data_folder)
    accelerator = make_accelerator()
    if accelerator.num_processes > 1:
        given = {
            "recipe": found.document.data,  # all of it, such as the steps with a checkpoint
            "model": start.digest,
            "data": splits.digest,
            "`resume`": resume,
        }
        check_same_in_all(given)
    with in_first_process(accelerator) as is_first:
        if is_first:
            _refuse_another_run(folder, resume=resume)
    with alone_in(folder, accelerator):
        return _trained(start, splits, chats, folder, accelerator, registry, resume=resume)


def _trained(
    start: Start,
    splits: Splits,
    chats: Chats | None,
    folder: Path,
    accelerator: Any,
    registry: Registry,
    *,
    resume: bool,
) -> dict[str, Any] | None:
    """Train a model in a folder that no other run uses. Result and errors are those of `train`."""
    recipe, labels = start.recipe, labels_in(start.spec, start.origin)
    begins = not (resume and checkpoints(folder / CHECKPOINTS))
    made: AnyTokens | None = None
    rows: Parts | None = None
    with in_first_process(accelerator) as is_first:
        if is_first:
            sweep(folder, grace=NO_GRACE).check()
            if begins:
                made = chats.tokens if chats else make_tokens(start, splits.train)
                check_specials(recipe, made, splits)
                rows = _encoded(start, splits, objective_of(recipe, made, labels))
    model = make_model(start, accelerator, registry)
    whole = accelerator.unwrap_model(model)
    optimizer = accelerator.prepare(make_optimizer(recipe.optimizer, whole))
    learner = Learner(start, model, optimizer, accelerator)
    # Files are written only now, so that a refused run leaves nothing behind.
    with in_first_process(accelerator):
        if made is not None:
            write_companions(made, start, folder)
    tokens = read_tokens(folder, recipe.tokenizer, start.sides, start.published)
    objective = objective_of(recipe, tokens, labels)
    if rows is None:
        rows = encode_parts(splits, objective, recipe)
    run = Run(folder, learner, objective, splits, rows)
    run.learn(resume=resume)
    return run.finish()


def _refuse_unreadable(folder: Path) -> None:
    """Raise `ZooError` if the folder or its checkpoints cannot be read, which would be taken for
    there being none."""
    for one in (folder, folder / CHECKPOINTS):
        try:
            any(one.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            pass  # nothing exists, or a file in place of a folder, which is reported later
        except OSError as error:
            raise ZooError(f"{quoted(one)} cannot be read: {error.strerror}") from None


def _refuse_another_run(folder: Path, *, resume: bool) -> None:
    """Raise `ZooError` if the folder is a file, or holds files that a new run would overwrite. A
    run that ended before its first checkpoint can be started again."""
    elsewhere = "`-o` names another folder"
    if folder.exists() and not folder.is_dir():
        raise ZooError(f"{quoted(folder)} is there already, and a file", help=elsewhere)
    has_checkpoints = bool(checkpoints(folder / CHECKPOINTS))
    holds_model = weights_path(folder).exists()
    if resume:
        if holds_model and not has_checkpoints:
            message = f"{quoted(folder)} holds a model, and no checkpoint to go on from"
            hint = "a recipe with the folder as its `model`, and another `-o`, trains it further"
            raise ZooError(message, help=hint)
    elif folder.exists() and any(folder.iterdir()):
        begun = any((folder / name).is_file() for name in (RECIPE, LOCK)) and not holds_model
        resuming = "`--resume` goes on with the run in it; " if begun or has_checkpoints else ""
        message = f"{quoted(folder)} is there already, and not empty"
        raise ZooError(message, help=f"{resuming}{elsewhere}")


def _encoded(start: Start, splits: Splits, objective: Objective) -> Parts:
    """Encode the data of a new run.

    Raises:
        TrainingError: all examples that are needed are left out; or no tokens are made of a text
            that needs some.
        InputError: the tokenizer cannot encode a text.
    """
    found = encode_parts(splits, objective, start.recipe)
    for (part, examples), rows in zip(splits.parts.items(), found, strict=True):
        if examples and not rows and (error := objective.no_rows(start.recipe, part)):
            raise error
    return found
