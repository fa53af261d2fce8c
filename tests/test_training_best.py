"""Runs whose result is the checkpoint with the lowest held-out loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import training_tasks as tasks
from breadth import slow
from ranks import Ranks
from toy_training import MODEL, RECIPE, write_toy
from trials import Refused

import zoo
from zoo.cli import run
from zoo.training.batches import Row
from zoo.training.checkpoint_state import checkpoints
from zoo.training.loop import Loop

pytestmark = pytest.mark.usefixtures("without_pictures")

LAST = (
    RECIPE.replace('"inverse_sqrt"\nwarmup = 4', '"constant"')
    .replace("average = 2\n", "")
    .replace("lr = 1e-2", "lr = 1.0")  # so high that the held-out loss soon rises
    .replace("label_smoothing = 0.1\n", "")
)
BEST = LAST + 'keep = "best"\n'
LONG = BEST.replace("steps = 12", "steps = 32")
Train = Callable[..., dict[str, Any]]


@pytest.fixture
def train(tmp_path: Path, config: Path) -> Train:
    """Train the toy into a folder; return the metrics."""

    def made(out: str, recipe: str, **options: Any) -> Any:
        return zoo.train(write_toy(tmp_path, recipe), output=tmp_path / out, **options)

    return made


def history(folder: Path) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((folder / "metrics.json").read_text())["history"]
    return found


def untimed(folder: Path) -> list[dict[str, float]]:
    return [{**record, "tokens_per_second": 0} for record in history(folder)]


def test_the_result_is_that_of_the_shorter_run_with_the_lowest_held_out_loss(
    train: Train, tmp_path: Path
) -> None:
    """A run of each number of steps at which there is a checkpoint."""
    runs = {
        steps: train(str(steps), LAST.replace("steps = 12", f"steps = {steps}"))
        for steps in (4, 8, 12)
    }
    lowest = min(runs, key=lambda steps: runs[steps]["valid_loss"])
    assert lowest < 12
    best = train("best", BEST)
    assert (best["best_step"], best["steps"]) == (lowest, 12)
    for key in ("content_digest", "valid_loss"):
        assert best[key] == runs[lowest][key]
    measured = [record["step"] for record in history(tmp_path / "best") if "valid_loss" in record]
    assert measured == [4, 6, 8, 12]
    assert [best["loss"]] == [
        record["loss"] for record in history(tmp_path / "best") if record["step"] == lowest
    ]
    left = [path.name for path in checkpoints(tmp_path / "best" / "checkpoints")]
    assert left == [f"step-{lowest:08}", "step-00000012"]


@pytest.mark.parametrize("broken", [slow(1), slow(4), 7, slow(10)])
def test_an_interruption_changes_nothing(broken: int, train: Train, tmp_path: Path) -> None:
    whole = train("whole", BEST)
    update = Loop.update

    def interrupted(self: Loop, batch: list[Row], step: int) -> torch.Tensor:
        if step == broken:
            raise KeyboardInterrupt
        return update(self, batch, step)

    with patch.object(Loop, "update", interrupted), pytest.raises(KeyboardInterrupt):
        train("parts", BEST)
    parts = train("parts", BEST, resume=True)
    for key in ("content_digest", "best_step", "loss", "valid_loss"):
        assert parts[key] == whole[key]
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


def test_a_run_without_patience_for_more_ends(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train("whole", LONG)
    capfd.readouterr()
    ended = train("ended", LONG + "patience = 12\n")
    compared = [one for one in history(tmp_path / "whole") if one["step"] % 4 == 0]
    best = end = compared[0]
    for end in compared:
        if end["valid_loss"] < best["valid_loss"]:
            best = end
        if end["step"] - best["step"] >= 12:
            break
    assert (ended["best_step"], ended["steps"]) == (best["step"], end["step"])
    assert ended["steps"] < 32
    assert ended["valid_loss"] == best["valid_loss"]
    assert (
        untimed(tmp_path / "ended")[:-1]
        == untimed(tmp_path / "whole")[: len(history(tmp_path / "ended")) - 1]
    )
    told = capfd.readouterr().err
    assert f"ended at step {end['step']}: no checkpoint since that of step {best['step']} " in told

    with patch.object(Loop, "update", side_effect=AssertionError):  # nothing is left to do
        assert train("ended", LONG + "patience = 12\n", resume=True) == ended
    more = train("ended", LONG + "patience = 32\n", resume=True)
    assert (more["content_digest"], more["steps"]) == (whole["content_digest"], 32)


def test_of_equal_losses_the_first_counts(train: Train) -> None:
    """Such steps are lost in the rounding of the weights."""
    ended = train("flat", BEST.replace("lr = 1.0", "lr = 1e-30") + "patience = 4\n")
    assert (ended["best_step"], ended["steps"]) == (4, 8)


def test_the_command_says_which_step_it_was(
    train: Train, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = train("one", BEST)["best_step"]
    write_toy(project, BEST)
    assert run(["train", "recipe.toml", "-o", "out"]) == 0
    assert f"12 steps (6.00 epochs), the best at step {step}\n" in capsys.readouterr().out


def test_other_held_out_data_is_another_run(train: Train, tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("mein Haus\tmy house\nein Bier\ta beer\n")
    recipe = BEST.replace("valid = 4", 'valid = "valid.tsv"')
    train("out", recipe)
    (tmp_path / "valid.tsv").write_text("mein Haus\tmy house\n")
    with pytest.raises(zoo.TrainingError, match="is of other data"):
        train("out", recipe, resume=True)


@pytest.mark.slow
def test_several_processes_choose_the_same_step(tmp_path: Path, two: Ranks) -> None:
    """Without dropout, which each process draws for itself."""
    recipe, model = LONG + "patience = 12\n", MODEL.replace("dropout = 0.1", "")
    one = zoo.train(write_toy(tmp_path, recipe, model), output=tmp_path / "one")
    assert one is not None
    two(tasks.trained, tmp_path, "two")
    told = json.loads((tmp_path / "two" / "metrics.json").read_text())
    for key in ("best_step", "steps"):
        assert told[key] == one[key]
    assert told["valid_loss"] == pytest.approx(
        one["valid_loss"], rel=0.02
    )  # so high a rate makes much of rounding


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (BEST.replace("valid = 4\n", ""), '`keep = "best"` compares losses on held-out data'),
        (BEST + "average = 2\n", "`average` makes a mean of the last checkpoints"),
        (LAST + "patience = 2\n", '`patience` counts from the best one: `keep = "best"`'),
        (BEST + "max_length = 5\n", "no held-out example is short enough"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    recipe: str, told: str, project: Path, refused: Refused
) -> None:
    write_toy(project, recipe)
    if "max_length" in told or "max_length" in recipe:
        long = "mein Haus und dein Haus ist groß\tmy house and your house is big\n"
        (project / "valid.tsv").write_text(long)
        (project / "toy.tsv").write_text("Haus\thouse\n" * 3 + "Hund\tdog\n")
        write = recipe.replace("valid = 4", 'valid = "valid.tsv"')
        (project / "recipe.toml").write_text(write)
        (project / "model.toml").write_text(MODEL.replace("300", "268"))
    assert told in refused("train", "recipe.toml", "-o", "out")
