"""The progress of a run: a bar on a terminal, lines elsewhere, and a clean stdout."""

from __future__ import annotations

import io
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_training import RECIPE, write_toy

import zoo
from zoo.cli import run
from zoo.training.loop import Loop
from zoo.training.plot import plot_losses
from zoo.training.progress import progress_of
from zoo.training.run import Run

RECORD = {
    "step": 50.0,
    "loss": 2.5,
    "learning_rate": 0.5,
    "tokens_per_second": 1234.4,
    "valid_loss": math.log(8),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
def test_throughput_and_losses_are_shown(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "160")
    with progress_of("toy", 0, 100, speaks=True) as progress:
        progress.advance(50)
        progress.log(RECORD)
    shown = stream.getvalue()
    assert "50/100" in shown
    assert "loss 2.5000  held out 2.0794 (perplexity 8.00)  1,234 tokens/s" in shown
    assert ("\x1b[" in shown) == stream.isatty()  # a bar is redrawn, a line is not


@pytest.mark.parametrize("columns", ["30", "80"])
def test_held_out_losses_stay_above_the_bar(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", columns)
    with progress_of("toy", 0, 100, speaks=True) as progress:
        progress.log(RECORD)
        progress.log({key: RECORD[key] for key in RECORD if key != "valid_loss"} | {"step": 60.0})
    line = "step 50/100  loss 2.5000  held out 2.0794 (perplexity 8.00)  1,234 tokens/s\n"
    assert terminal.getvalue().count(line) == 1
    assert terminal.getvalue().count("held out") == 1  # no part of the bar


def test_a_perplexity_of_many_digits_is_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of("toy", 0, 100, speaks=True) as progress:
        progress.log(RECORD | {"valid_loss": 107.7133})
    assert "held out 107.7133 (perplexity 6.0e+46)" in capsys.readouterr().err


def test_a_process_that_does_not_speak_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_of("toy", 0, 100, speaks=False) as progress:
        progress.advance(50)
        progress.log(RECORD)
    assert capfd.readouterr() == ("", "")


def test_what_does_not_learn_is_no_part_of_the_throughput(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by a clock on which an update takes a second, and everything else a thousand."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow(cls: type, name: str, seconds: float) -> None:
        method = getattr(cls, name)

        def taking(*args: Any) -> Any:
            now[0] += seconds
            return method(*args)

        monkeypatch.setattr(cls, name, taking)

    slow(Loop, "update", 1.0)
    slow(Loop, "measure", 1000.0)
    slow(Run, "checkpoint", 1000.0)
    recipe = RECIPE.replace("valid_every = 6", "valid_every = 3")
    zoo.train(write_toy(project, recipe), output="out")
    history = json.loads(Path("out/metrics.json").read_text())["history"]
    rates = [record["tokens_per_second"] for record in history]
    assert len(rates) == 8  # some log points are between two checkpoints, some have one within
    assert min(rates) > max(rates) / 2


def test_the_report_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_toy(project, RECIPE)
    whole = ["train", "recipe.toml", "--set", "training.batch_tokens=5000"]  # in one batch
    assert run([*whole, "--json"]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["path"] == str(Path("toy") / "model.safetensors")
    assert report["steps"] == 12
    assert report["epochs"] == 12
    assert "an epoch is 1 step, of 60 examples: steps = 12 are 12.00 epochs\n" in told.err
    assert told.err.count("\nstep ") == 6
    assert run([*whole, "--resume"]) == 0
    assert capsys.readouterr().out.endswith(f"{report['path']}\n{report['content_digest']}\n")


def test_the_plot_has_a_line_for_each_loss(tmp_path: Path) -> None:
    history = [{"step": float(n), "loss": 1.0 / n, "learning_rate": 0.1 * n} for n in range(1, 9)]
    plot_losses(history, "toy", "cross-entropy", tmp_path / "without.svg")
    plot_losses([*history, RECORD], "toy", "cross-entropy", tmp_path / "with.svg")
    plot_losses(history, "toy", "cross-entropy", tmp_path / "again.svg")
    texts = {name: (tmp_path / f"{name}.svg").read_text() for name in ("without", "with", "again")}
    assert all(">training<" in text and ">toy<" in text for text in texts.values())
    assert [">held out<" in texts[name] for name in ("without", "with")] == [False, True]
    assert all(">learning rate (dotted)<" in text for text in texts.values())
    assert texts["again"] == texts["without"]
