"""Compare runs of training: `zoo results`. Imports no torch."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.arguments import check_path
from zoo.errors import InputError, Place, TrainingError
from zoo.files.of_model import RECIPE, TARGET_TOKENIZER, TOKENIZER
from zoo.files.of_training import CHECKPOINTS, METRICS
from zoo.json_files import strict_json
from zoo.reports.columns import Value, cell, differing, laid_out
from zoo.training.checkpoint_state import checkpoints, read_state, step_of
from zoo.training.recipe import Recipe, read_recipe
from zoo.weights.file import weights_path
from zoo.weights.reader import read_header
from zoo.wording import quoted, typed

MEASURES = (
    "steps",
    "best_step",
    "loss",
    *(f"{part}_{key}" for part in ("valid", "test") for key in ("loss", "accuracy", "rmse")),
    "perplexity",
    "bits_per_byte",
    "masked_perplexity",
    "bleu",
    "accuracy",
    "micro_f1",
    "macro_f1",
    "precision",
    "recall",
    "f1",
    "pearson",
    "spearman",
    "rmse",
)
"""What is measured of a run, in the order of the columns: keys of `metrics.json`."""
_TWO_DIGITS = ("perplexity", "masked_perplexity", "bleu")
"""The measures that are told with two digits behind the point, and not with four."""


_NOT_COMPARED = ("name", "seed")
"""The keys of a recipe that have columns of their own."""


@dataclass(frozen=True)
class TrainingRun:
    """A run of `zoo train`, as its folder tells it.

    Args:
        folder: the folder, as it was named.
        recipe: its recipe.
        measured: what is in `metrics.json`; of a run that has not ended, its `steps` and losses.
        history: the lines of its log.
        spec: the spec of the model, but for its name; None of a run that has not ended.
        tokenizers: the contents of its tokenizers.
    """

    folder: str
    recipe: Recipe
    measured: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    spec: Mapping[str, Any] | None
    tokenizers: tuple[bytes, ...]

    @classmethod
    def of(cls, folder: str | Path) -> TrainingRun:
        """Read the folder of a run.

        Raises:
            TrainingError: it is none, or what it holds is damaged.
            SpecError: its recipe is wrong.
        """
        path = check_path(folder, "a run is the path of its folder")
        # `Path.is_file` raises for a name too long, and for a folder that may not be searched.
        if not os.path.isfile(path / RECIPE):
            message = f"{quoted(folder)} is no folder of a run: it has no {RECIPE}"
            hint = "`zoo train` makes one"
            if os.path.isdir(path) and any(path.glob(f"*/{RECIPE}")):
                hint = f"name the runs in it: {typed(path)}/*"
            raise TrainingError(message, help=hint)
        recipe, saved = read_recipe(path / RECIPE), checkpoints(path / CHECKPOINTS)
        found = _metrics(path)
        if found is None and not saved and weights_path(path).exists():
            message = f"{quoted(folder)} holds a model, and no {METRICS} of its training"
            raise TrainingError(message, help="`zoo score` measures it again")
        if found is not None and _has_ended(recipe, found["steps"], saved):
            spec = {**read_header(weights_path(path)).spec, "name": None}
            measured, history = found, found["history"]
        else:
            history = read_state(saved[-1])["history"] if saved else []
            measured, spec = {"steps": 0, **(history[-1] if history else {})}, None
            measured["steps"] = measured.pop("step", 0)
        files = (path / name for name in (TOKENIZER, TARGET_TOKENIZER))
        tokenizers = tuple(file.read_bytes() for file in files if file.is_file())
        return cls(os.fspath(folder), recipe, measured, history, spec, tokenizers)

    @property
    def ended(self) -> bool:
        """Whether all its steps are done, and its result is measured."""
        return self.spec is not None

    @property
    def same_but_for_seed(self) -> str:
        """What is the same of runs that differ in their seeds alone."""
        told = {
            key: value for key, value in self.recipe.values().items() if key not in _NOT_COMPARED
        }
        return json.dumps([told, self.spec, self.measured.get("data_digest")], sort_keys=True)

    @property
    def values(self) -> dict[str, Value]:
        """The values of the recipe, by their key paths."""
        holds = self.recipe.document.holds
        return {
            path: Value(value, holds(tuple(path.split("."))))
            for path, value in self.recipe.values().items()
            if path not in _NOT_COMPARED
        }

    @property
    def held_out_by(self) -> int | None:
        """The seed of what is held out; None if files say what is."""
        data = self.recipe.data
        if not any(isinstance(part, int) and part for part in (data.valid, data.test)):
            return None
        return self.recipe.head.seed if data.seed is None else data.seed


def results(runs: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Compare runs of `zoo train`: what `zoo results --json` prints, a row for each, as plain data.

    Args:
        runs: their folders.

    Returns:
        Rows with the same keys in the same order: the `folder`, and the recipe's `name` and `seed`;
        each value that some recipe states and that is not the same in all, under a key as those of
        `zoo.table`; the number of `parameters`; whether the run has `ended`; and what was measured
        of it, under the keys of `metrics.json`. Of a run that has not ended, the losses are those
        of its last checkpoint. None where a run has no such value.

    Raises:
        InputError: `runs` is one folder.
        TrainingError: a folder is none of a run, or what it holds is damaged.
        SpecError: a recipe is wrong.
    """
    if isinstance(runs, str) or not isinstance(runs, Iterable):
        raise InputError("`runs` is a list, of one folder too: `results([...])`")
    return rows_of(read_runs(runs))


def read_runs(folders: Iterable[str | Path]) -> list[TrainingRun]:
    """Read the folders of runs, each once: one that counted twice would be a further run without
    a deviation. Raises as `results`."""
    runs = [TrainingRun.of(one) for one in folders]
    return list({os.path.realpath(run.folder): run for run in runs}.values())


def rows_of(runs: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """The rows of runs, as `results` returns them."""
    rows: list[dict[str, Any]] = [
        {"folder": run.folder, "name": run.recipe.head.name, "seed": run.recipe.head.seed}
        for run in runs
    ]
    columns = [
        *_differing(runs),
        ("parameters", [run.measured.get("parameters") for run in runs]),
        ("ended", [run.ended for run in runs]),
        *((key, [run.measured.get(key) for run in runs]) for key in _measures(runs)),
    ]
    for key, values in columns:
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return rows


def notes(runs: Sequence[TrainingRun]) -> Iterator[str]:
    """What makes the losses of runs hard to compare."""
    if len({run.held_out_by for run in runs} - {None}) > 1:
        yield (
            "what is held out differs with the seed, and so do the losses measured on it; a `seed` "
            "in `[data]` makes it the same"
        )
    if len({run.measured.get("data_digest") for run in runs} - {None}) > 1:
        yield "the runs have read different data: what they learn from or are measured on differs"
    if len({run.tokenizers for run in runs} - {()}) > 1:
        yield (
            "the runs have different tokenizers: losses and perplexities are of other tokens, and "
            "only `bits_per_byte` compares"
        )


# --- text ---------------------------------------------------------------------------------------


def results_text(runs: Sequence[TrainingRun]) -> str:
    """Format runs as a table. Those that differ in their seeds alone share a line, with the mean of
    each measure and, behind the sign ±, its standard deviation (of the sample)."""
    groups, differing_values = by_seed(runs), dict(_differing(runs))
    numbers = {id(run): number for number, run in enumerate(runs)}
    several = len(groups) < len(runs) or len({run.recipe.head.seed for run in runs}) > 1
    seeds = [", ".join(str(run.recipe.head.seed) for run in group) for group in groups.values()]
    columns, right = [["name", *groups]], [False]
    if several:
        columns.append(["seeds" if len(groups) < len(runs) else "seed", *seeds])
        right.append(False)
    for key, values in differing_values.items():
        of_groups = [values[numbers[id(group[0])]] for group in groups.values()]
        columns.append([key, *(cell(value) for value in of_groups)])
        right.append(all(isinstance(value, int | float | None) for value in of_groups))
    for key in ("parameters", *_measures(runs)):
        columns.append([key, *(_measured(key, group) for group in groups.values())])
        right.append(True)
    return laid_out(columns, right)


def by_seed(runs: Sequence[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """Runs that differ in their seeds alone together, by their name: that of the recipe or, where
    other runs have the same, the folder of the first."""
    groups: dict[str, list[TrainingRun]] = {}
    for run in runs:
        groups.setdefault(run.same_but_for_seed, []).append(run)
    names = Counter(group[0].recipe.head.name for group in groups.values())
    return {
        first.recipe.head.name if names[first.recipe.head.name] == 1 else first.folder: group
        for group in groups.values()
        for first in group[:1]
    }


def _measured(key: str, group: Sequence[TrainingRun]) -> str:
    """Tell a measure of the runs of a group."""
    values = [run.measured[key] for run in group if run.measured.get(key) is not None]
    if not values:
        return ""
    whole = all(isinstance(value, int) for value in values)
    digits = 0 if whole else 2 if key in _TWO_DIGITS else 4
    told = f"{statistics.fmean(values):,.{digits}f}"
    if len(values) > 1 and not (whole and len(set(values)) == 1):
        told += f" ± {statistics.stdev(values):,.{digits}f}"
    return told if key != "steps" or group[0].ended else f"{told}, not ended"


# --- parts --------------------------------------------------------------------------------------


def _differing(runs: Sequence[TrainingRun]) -> list[tuple[str, tuple[object, ...]]]:
    """The values of the recipes that differ, by their names in the table."""
    taken = ("folder", "name", "seed", "seeds", "parameters", "ended", *MEASURES)
    return list(differing([run.values for run in runs], taken))


def _measures(runs: Sequence[TrainingRun]) -> list[str]:
    """The measures that some run has."""
    return [key for key in MEASURES if any(key in run.measured for run in runs)]


def _has_ended(recipe: Recipe, measured: int, saved: Sequence[Path]) -> bool:
    """Whether what was measured after so many steps is the end of a run, and not what it was before
    the recipe made it longer. `patience` ends it after fewer than all steps."""
    if recipe.training.patience is None:
        return measured == recipe.training.steps
    return not saved or step_of(saved[-1]) <= measured


def _metrics(folder: Path) -> dict[str, Any] | None:
    """Read what a run has measured at its end; None if there is no such file."""
    path = folder / METRICS
    try:
        found = strict_json(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TrainingError(f"it cannot be read: {reason}", Place(str(path))) from None
    if not isinstance(found, dict) or not {"steps", "loss", "history"} <= found.keys():
        raise TrainingError("these are no measurements of a run", Place(str(path)))
    return found
