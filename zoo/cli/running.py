"""The command line: `zoo run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from zoo.cli.options import complete_models, json_option
from zoo.cli.output import print_report
from zoo.errors import InputError

if TYPE_CHECKING:
    from zoo.generation.methods import Beam, Greedy, Sampling

GENERATING_OPTIONS = {
    "max_new_tokens",
    "beams",
    "sample",
    "seed",
    "repetition_penalty",
    "eos",
    "start",
}


@click.command()
@click.argument("model", shell_complete=complete_models)
@click.argument("text")
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Where generated text ends at last.",
)
@click.option("--beams", type=click.IntRange(1), help="Search with so many sequences at a time.")
@click.option("--sample", is_flag=True, help="Draw tokens instead of taking the likeliest.")
@click.option("--temperature", type=float, help="Of drawing: below 1, likely tokens are likelier.")
@click.option("--top-k", type=int, help="Draw from so many tokens only.")
@click.option("--top-p", type=float, help="Draw from the likeliest, with this share in sum.")
@click.option("--min-p", type=float, help="Draw from those with this share of the likeliest.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of drawing.")
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Above 1, tokens that are there already become less likely.",
)
@click.option("--eos", type=int, help="The id that ends text, over what the folder says.")
@click.option("--start", type=int, help="The id that a target begins with, likewise.")
@click.option("--mask-id", type=int, help="The id of a masked token, where text is ids.")
@json_option
@click.pass_context
def run(
    context: click.Context,
    model: str,
    text: str,
    max_new_tokens: int,
    beams: int | None,
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int,
    repetition_penalty: float,
    eos: int | None,
    start: int | None,
    mask_id: int | None,
    as_json: bool,
) -> None:
    """Translate, continue, embed, fill in or classify a text.

    MODEL, a folder or a model's name, does with TEXT what it is for. Without a tokenizer in the
    folder, text is ids: `5 9 33`. A TEXT of `-` is read from the standard input.
    """
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = {name: value for name, value in drawing.items() if value is not None}
    if given and not sample:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} goes with --sample")
    if sample and beams is not None:
        raise click.UsageError("--sample and --beams are two ways to choose tokens; take one")
    from zoo.generation.methods import Beam
    from zoo.loading import find_weights, load
    from zoo.running.tasks import GENERATING, Options, as_text, run_task, stream_task
    from zoo.running.text import read_special_ids, read_text

    if text == "-":
        text = _standard_input()
    method = _method(given, beams, seed if sample else None, repetition_penalty)
    registry = context.obj()
    path = find_weights(model, registry)
    found, folder = load(path, registry=registry), path.parent
    reading, special = read_text(folder), read_special_ids(folder)
    if found.spec.model.task not in GENERATING:
        _refuse_generating(context, found.spec.name)
    options = Options(
        max_new_tokens=max_new_tokens, method=method, eos=eos, start=start, mask_id=mask_id
    )
    shown_live = not as_json and sys.stdout.isatty() and found.spec.model.task in GENERATING
    if shown_live and not isinstance(method, Beam):  # a beam knows no token before its end
        pieces = stream_task(
            found, text, text=reading, special=special, options=options, method=method
        )
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return
    report = run_task(found, text, text=reading, special=special, options=options)
    print_report(as_json, report, as_text)


def _standard_input() -> str:
    """What stands there, without the line's end that `echo` adds. Raises InputError if it is not
    UTF-8."""
    raw = b"" if sys.stdin is None else sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InputError("the standard input is not UTF-8") from None


def _refuse_generating(context: click.Context, model: str) -> None:
    """Raises UsageError if an option is given that only generated text has."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in GENERATING_OPTIONS and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[-1]}: {model} generates no text")


def _method(
    drawing: dict[str, float], beams: int | None, seed: int | None, penalty: float
) -> Greedy | Sampling | Beam:
    """Raises InputError for a number that is out of range."""
    from pydantic import ValidationError

    from zoo.generation.methods import Beam, Greedy, Sampling

    try:
        if beams is not None:
            return Beam(size=beams, repetition_penalty=penalty)
        if seed is None:
            return Greedy(repetition_penalty=penalty)
        return Sampling.model_validate({**drawing, "seed": seed, "repetition_penalty": penalty})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise InputError(f"--{name}: {first['msg']}") from None
