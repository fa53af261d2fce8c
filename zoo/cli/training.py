"""The command line: `zoo train`, `zoo results` and `zoo score`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click

from zoo.cli.options import (
    PathType,
    Registries,
    device_option,
    dtype_choice,
    folder_option,
    json_option,
    model_type,
    path_type,
    weights_option,
)
from zoo.cli.output import print_report
from zoo.cli.progress import count_bar
from zoo.wording import counted


@click.command()
@click.argument("recipe", type=path_type)
@folder_option("-o", "--output", help="Folder for the model.  [default: the recipe's name]")
@folder_option("-d", "--data", help="Folder of the data files.  [default: the recipe's]")
@click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Another value of a key of the recipe, such as `seed=1` or `training.steps=200`. "
    "Repeat it for several. A value is TOML, or else a string, such as `model=wide.toml`.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue from the last checkpoint in the folder, if there is one.",
)
@json_option
@click.pass_obj
def train(
    registries: Registries,
    recipe: Path,
    output: Path | None,
    data: Path | None,
    changes: tuple[str, ...],
    resume: bool,
    as_json: bool,
) -> None:
    """Train a model by a recipe.

    RECIPE is a TOML file. The folder gets the weights, the tokenizer and the scores, and the
    recipe as it was carried out.
    """
    from zoo.document import read_document
    from zoo.training.overrides import overridden
    from zoo.training.recipe import recipe_of

    # Its mistakes are reported before torch is imported.
    found = recipe_of(overridden(read_document(recipe), changes))
    from zoo.training.train import train as run

    gc.enable()
    try:
        report = run(found, output=output, data=data, resume=resume, registry=registries())
    except KeyboardInterrupt:
        click.echo("with `--resume`, the same command goes on from the last checkpoint", err=True)
        raise
    if report is not None:
        print_report(as_json, report, _text)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=path_type)
@click.option(
    "--svg", type=PathType(".svg"), help="Plot the losses of all runs into this SVG file, too."
)
@json_option
def results(runs: tuple[Path, ...], svg: Path | None, as_json: bool) -> None:
    """Compare runs of training: their recipes, losses and scores.

    RUNS are folders made by `zoo train`. Runs that differ in their seeds alone share a line, with
    means and standard deviations. Of a run that has not ended, the last checkpoint counts.
    """
    from zoo.reports.results import by_seed, notes, read_runs, results_text, rows_of

    found = read_runs(runs)
    for note in notes(found):
        click.echo(note, err=True)
    if svg is not None:
        from zoo.training.plot import plot_runs

        histories = {
            name: [run.history for run in group if run.history]
            for name, group in by_seed(found).items()
        }
        plot_runs(histories, svg)
    print_report(as_json, rows_of(found), lambda _: results_text(found))


@click.command()
@click.argument("model", type=model_type)
@click.option(
    "-d",
    "--data",
    metavar="PATH",
    type=path_type,
    help="Folder of the recipe's data files, or a file of text.  [default: MODEL]",
)
@click.option(
    "--window",
    metavar="TOKENS",
    type=click.IntRange(min=1),
    help="Of one long text: how much is read at once.  [default: 1024, or all positions]",
)
@click.option(
    "--stride",
    metavar="TOKENS",
    type=click.IntRange(min=1),
    help="By how much the window moves on.  [default: half of it]",
)
@click.option(
    "--dtype",
    type=dtype_choice,
    default="float32",
    show_default=True,
    help="Compute in this dtype, such as that in which the model will be used.",
)
@device_option
@weights_option
@json_option
@click.pass_obj
def score(
    registries: Registries,
    model: str,
    data: Path | None,
    window: int | None,
    stride: int | None,
    dtype: str,
    device: str,
    weights: Literal["int8"] | None,
    as_json: bool,
) -> None:
    """Measure a model: BLEU, perplexity, accuracy, F1, correlation.

    MODEL is a folder made by `zoo train`, which is measured on the test data of its recipe; or,
    with a file of text, any decoder with a tokenizer.
    """
    from zoo.training.scores import score as measure

    gc.enable()
    with count_bar("scoring") as bar:
        report = measure(
            model,
            data=data,
            window=window,
            stride=stride,
            dtype=dtype,
            device=device,
            weights=weights,
            registry=registries(),
            on_progress=bar.set_done,
        )
    print_report(as_json, report, _score_text)


_SCORES: Mapping[str, str] = {
    "perplexity": "perplexity: {perplexity:.4g} on {tokens}, {bits_per_byte:.4f} bits for each of "
    "{bytes}",
    "masked_perplexity": "accuracy: {accuracy:.4f} on {masked_tokens} that are masked, perplexity "
    "{masked_perplexity:.4g}",
    "words": "accuracy: {accuracy:.4f} on {words}",
    "micro_f1": "F1 on {texts}: micro {micro_f1:.4f}, macro {macro_f1:.4f}",
    "macro_f1": "accuracy: {accuracy:.4f} on {texts}, macro F1 {macro_f1:.4f}",
    "rmse": "correlation on {texts}: Pearson {pearson}, Spearman {spearman}; RMSE {rmse:.4f}",
    "bleu": "BLEU: {bleu:.2f} on {pairs} ({signature})",
}
"""The text of scores by a key that they have: the first that is there tells what was scored."""
_MORE: Mapping[str, str] = {
    "window": " (window {window:,}, stride {stride:,})",
    "f1": ", F1 of entities {f1:.4f} (precision {precision:.4f}, recall {recall:.4f})",
}
"""What follows, if this key is there too."""
_COUNTED = ("tokens", "bytes", "masked_tokens", "words", "texts", "pairs")
"""The keys of what is counted."""


def _score_text(report: Mapping[str, Any]) -> str:
    told = dict(report)
    for key in told.keys() & _COUNTED:
        told[key] = counted(told[key], key.removeprefix("masked_").removesuffix("s"))
    for key in told.keys() & ("pearson", "spearman"):
        told[key] = "undefined" if told[key] is None else f"{told[key]:.4f}"
    first = next((text for key, text in _SCORES.items() if key in told), "")
    more = (text for key, text in _MORE.items() if key in told)
    return "".join([first, *more]).format_map(told)


def _text(report: dict[str, Any]) -> str:
    losses = [
        f"{label} {report[key]:.4f}"
        for key, label in (("loss", "training"), ("valid_loss", "held out"), ("test_loss", "test"))
        if key in report
    ]
    n_frozen = report["frozen_parameters"]
    frozen = f", {n_frozen:,} of them frozen" if n_frozen else ""
    if "lora_parameters" in report:
        frozen += f", {report['lora_parameters']:,} more in low-rank updates"
    best = f", the best at step {report['best_step']:,}" if "best_step" in report else ""
    many = f", {report['processes']} processes" if report["processes"] > 1 else ""
    lines = [
        f"{report['name']}: {report['parameters']:,} parameters{frozen}, "
        f"{counted(report['steps'], 'step')} ({report['epochs']:,.2f} epochs){best}{many}",
        f"loss: {', '.join(losses)}",
    ]
    if scores := _score_text(report):
        lines.append(scores)
    return "\n".join([*lines, report["path"], report["content_digest"]])
