"""From a recipe to a trained model in a folder: what joins the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.errors import Problem, TrainingError, ZooError
from zoo.purpose import Generation
from zoo.reading import read_source
from zoo.registry import Registry, load_registry
from zoo.spec import ModelSpec
from zoo.training.checkpoints import checkpoints
from zoo.training.data import read_data
from zoo.training.files import CHECKPOINTS
from zoo.training.learner import Learner
from zoo.training.optimization import make_optimizer
from zoo.training.processes import make_accelerator, make_model
from zoo.training.recipe import Recipe, read_recipe
from zoo.training.run import Run
from zoo.training.split import Splits
from zoo.training.tokens import read_tokens, tokens_of
from zoo.weights_file import weights_path


def train(
    recipe: str | Path | Recipe,
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
        recipe: a TOML file, or one that was read.
        output: the folder; the recipe's name, in the working directory, unless given.
        data: what the names of data files are relative to; the recipe's folder unless given.
        resume: go on from the last checkpoint in the folder, or begin, if there is none yet. The
            weights then are those of a run that was never interrupted, bit by bit on one machine.
        registry: where names are looked up; the layers around the working directory unless given.

    Returns:
        What `metrics.json` holds, but for the log: losses, score, digest. Of several processes, the
        first returns it, and the others None.

    Raises:
        SpecError: the recipe or the model's spec is wrong.
        TrainingError: the data, the tokenizer or the run is.
        ZooError: the folder holds another run, or cannot be written.
    """
    registry = load_registry() if registry is None else registry
    found = recipe if isinstance(recipe, Recipe) else read_recipe(Path(recipe))
    folder = Path(found.head.name if output is None else output)
    spec, start = _model(found, registry)
    sides = _sides(found, spec)
    splits = read_data(found.data, found.folder if data is None else Path(data), found.head.seed)
    _check_sides(found, sides, splits)
    accelerator = make_accelerator()
    begins = not (resume and checkpoints(folder / CHECKPOINTS))
    if begins and accelerator.is_main_process:
        _refuse_another_run(folder, resume=resume)
        _prepare(folder, found, sides, start, splits)
    accelerator.wait_for_everyone()
    model = make_model(spec, start, found, accelerator, registry)
    optimizer = accelerator.prepare(make_optimizer(found.optimizer, model))
    learner = Learner(spec, model, optimizer, accelerator)
    run = Run(found, folder, learner, read_tokens(folder, found.tokenizer, sides), splits)
    run.learn(resume=resume)
    return run.finish()


def _model(recipe: Recipe, registry: Registry) -> tuple[ModelSpec, Path | None]:
    """The spec of what is trained, and the saved model that it starts from, if it does."""
    beside = recipe.folder / recipe.head.model
    source = str(beside) if beside.exists() else recipe.head.model
    try:
        spec, header = read_source(source, registry)
    except ZooError as error:
        if any(problem.place for problem in error.problems):
            raise
        raise _at(error, recipe, "model") from None
    return spec, None if header is None else weights_path(Path(source))


def _sides(recipe: Recipe, spec: ModelSpec) -> Generation:
    """The vocabularies of a model. Raises `TrainingError` if it cannot be trained here."""
    found = spec.model.generation
    if found is None or found.needs_memory or (found.has_source and found.source_vocab is None):
        raise TrainingError(
            Problem(
                f"{spec.name} cannot be trained by a recipe",
                recipe.document.place(("model",), value=True),
                help="that takes a decoder, or an encoder and a decoder, from tokens to tokens",
            )
        )
    if found.looks_ahead:
        raise TrainingError(
            Problem(
                f"{spec.name} would see the tokens that it has to predict: "
                f"{', '.join(found.looks_ahead)}",
                recipe.document.place(("model",), value=True),
                help="a recipe trains models whose positions see no later ones",
            )
        )
    limits = [limit for limit in (found.longest, found.longest_source) if limit is not None]
    if limits and recipe.training.max_length > min(limits):
        raise TrainingError(
            Problem(
                f"sequences of max_length = {recipe.training.max_length} tokens do not fit: "
                f"{spec.name} has positions for {min(limits)}",
                recipe.document.place(("training", "max_length"), value=True),
                help=f"state `max_length = {min(limits)}` in `[training]`",
            )
        )
    return found


def _check_sides(recipe: Recipe, sides: Generation, splits: Splits) -> None:
    """Raises `TrainingError` if a model of pairs is to learn from text, or the other way round."""
    has_source = splits.train[0].source is not None
    if has_source == sides.has_source:
        return
    what = "pairs" if has_source else "text"
    needs = "text, one line for each example" if has_source else "pairs of source and target"
    place = recipe.document.place(("data", "kind"), value=True)
    raise TrainingError(Problem(f"the data is {what}, and the model learns from {needs}", place))


def _refuse_another_run(folder: Path, *, resume: bool) -> None:
    """Raises `ZooError` if the folder holds what a run that begins would write over. What a run
    has left that ended before its first checkpoint can be begun anew."""
    if resume:
        if weights_path(folder).exists():
            raise ZooError(
                Problem(
                    f"{str(folder)!r} holds a model, and no checkpoint to go on from",
                    help="a recipe with the folder as its `model`, and another `-o`, trains it "
                    "further",
                )
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ZooError(
            Problem(
                f"{str(folder)!r} is there already, and not empty",
                help="`--resume` goes on with the run in it; `-o` names another folder",
            )
        )


def _prepare(
    folder: Path, recipe: Recipe, sides: Generation, start: Path | None, splits: Splits
) -> None:
    """Write the tokenizers of a run."""
    try:
        tokens = tokens_of(recipe.tokenizer, splits.train, sides, recipe.folder, start)
    except TrainingError as error:
        raise _at(error, recipe, "tokenizer") from None
    tokens.save(folder)


def _at(error: ZooError, recipe: Recipe, *path: str) -> ZooError:
    """The error with the place of a key of the recipe, where it has none of its own."""
    place = recipe.document.place(path)
    problems = [problem._replace(place=problem.place or place) for problem in error.problems]
    return type(error)(problems)
