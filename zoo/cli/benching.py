"""The command line: `zoo bench`."""

from __future__ import annotations

import gc
from typing import Literal

import click

import zoo
from zoo.cli.options import (
    Registries,
    count_option,
    device_option,
    dtype_choice,
    json_option,
    model_type,
    weights_option,
)
from zoo.cli.output import print_report
from zoo.cli.progress import count_bar


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=model_type)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(["forward", "train", "generate"]),
    help="What to measure. Repeat it for several.  [default: all that a model can do]",
)
@count_option("--batch", least=1, default=1, help="Sequences, or images, at a time.")
@count_option(
    "--length",
    least=1,
    default=128,
    help="Tokens of each sequence; where a model reads two, of each of them.",
)
@count_option("--new-tokens", least=2, default=32, help="Tokens that are generated after each.")
@count_option("--rounds", least=5, default=5, help="Rounds, each of all models in turn.")
@device_option
@click.option(
    "--dtype",
    type=dtype_choice,
    default="float32",
    show_default=True,
    help="Dtype of the weights.",
)
@weights_option
@json_option
@click.pass_obj
def bench(
    registries: Registries,
    models: tuple[str, ...],
    tasks: tuple[str, ...],
    batch: int,
    length: int,
    new_tokens: int,
    rounds: int,
    device: str,
    dtype: str,
    weights: Literal["int8"] | None,
    as_json: bool,
) -> None:
    """Measure how fast models are on this machine.

    Each MODEL is a spec file, a model's name, or a weights file or its folder. All are built with
    initial weights, and measured in turn: a forward pass, a step of training, and of those that
    generate the reading of the prompt (prefill) and the tokens after the first (decode).
    """
    registry = registries()
    from zoo.benching.report import bench_text

    gc.enable()
    with count_bar("measuring") as bar:
        report = zoo.bench(
            models,
            tasks=tasks or None,
            batch=batch,
            length=length,
            new_tokens=new_tokens,
            rounds=rounds,
            device=device,
            dtype=dtype,
            weights=weights,
            registry=registry,
            on_progress=bar.set_done,
        )
    print_report(as_json, report, bench_text)
