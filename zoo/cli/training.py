"""The command line: `zoo train` and `zoo score`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import click

from zoo.cli.options import Layers, json_option
from zoo.cli.output import print_report
from zoo.errors import counted


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the model and all that belongs to it.  [default: the recipe's name]",
)
@click.option(
    "-d",
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the data files.  [default: the recipe's]",
)
@click.option(
    "--resume", is_flag=True, help="Go on from the last checkpoint in the folder, if there is one."
)
@json_option
@click.pass_obj
def train(
    layers: Layers,
    recipe: Path,
    output: Path | None,
    data: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Train a model by a recipe.

    RECIPE is a TOML file. What is made are the model's tokenizer, its weights and its scores.
    """
    from zoo.training.recipe import read_recipe

    found = read_recipe(recipe)  # a mistake in it is told before torch is imported
    from zoo.training.train import train as run

    gc.enable()
    report = run(found, output=output, data=data, resume=resume, registry=layers())
    if report is not None:
        print_report(as_json, report, _text)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-d",
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of the data files.  [default: FOLDER]",
)
@json_option
@click.pass_obj
def score(layers: Layers, folder: Path, data: Path | None, as_json: bool) -> None:
    """Measure a trained model again.

    That in FOLDER, on the test data of its recipe.
    """
    from zoo.training.scores import score as measure

    gc.enable()
    report = measure(folder, data=data, registry=layers())
    print_report(as_json, report, _score_text)


def _score_text(report: dict[str, Any]) -> str:
    return (
        f"BLEU: {report['bleu']:.2f} on {counted(report['pairs'], 'pair')} ({report['signature']})"
    )


def _text(report: dict[str, Any]) -> str:
    losses = [
        f"{label} {report[key]:.4f}"
        for key, label in (("loss", "training"), ("valid_loss", "held out"), ("test_loss", "test"))
        if key in report
    ]
    lines = [
        f"{report['name']}: {report['parameters']:,} parameters, "
        f"{counted(report['steps'], 'step')}",
        f"loss: {', '.join(losses)}",
    ]
    if "bleu" in report:
        lines.append(_score_text(report))
    return "\n".join([*lines, report["path"], report["content_digest"]])
