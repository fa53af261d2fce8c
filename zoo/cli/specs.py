"""Commands for specs: `zoo build`, `validate`, `show`, `diff`, `schema`, `list`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zoo
from zoo.cli.options import Layers, complete_models, dtype_choice, json_option
from zoo.cli.output import print_report
from zoo.errors import Place, Problem, ZooError

if TYPE_CHECKING:
    from zoo.registry import Registry
    from zoo.spec import ModelSpec

spec_argument = click.argument("spec", shell_complete=complete_models)


@click.command()
@spec_argument
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the model.safetensors, or a .safetensors file.  [default: the model's name]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Of the initial weights: the same spec and seed give the same bytes everywhere.",
)
@click.option(
    "--dtype",
    type=dtype_choice,
    default="float32",
    show_default=True,
    help="Of the weights; they are made in float32 and cast last.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Where it is built; `meta` checks the build and writes nothing.",
)
@click.option(
    "--max-shard-bytes",
    metavar="BYTES",
    type=click.IntRange(min=1),
    help="Write shards of at most so many bytes of tensors, with their index.",
)
@click.option("--locked", is_flag=True, help="Refuse what differs from the zoo.lock beside SPEC.")
@json_option
@click.pass_obj
def build(
    layers: Layers,
    spec: str,
    output: Path | None,
    seed: int,
    dtype: str,
    device: str,
    max_shard_bytes: int | None,
    locked: bool,
    as_json: bool,
) -> None:
    """Build a model and write weights that rebuild themselves.

    SPEC is a file or a model's name.
    """
    registry = layers()
    found = zoo.read_spec(spec, registry=registry)
    if locked:
        from zoo.lock import check_locked

        check_locked(found, Path(spec).parent)
    from zoo.cli.making import build_and_save

    gc.enable()
    report = build_and_save(
        found, output, seed=seed, dtype=dtype, device=device, max_shard_bytes=max_shard_bytes
    )
    print_report(as_json, report, _build_text)


def _build_text(report: dict[str, Any]) -> str:
    size = f"{report['name']}: {report['parameters']:,} parameters"
    if report["path"] is None:
        return f"{size}, built on {report['device']}; nothing is written"
    return f"{size}, seed {report['seed']}\n{report['path']}\n{report['content_digest']}"


@click.command()
@click.argument("specs", nargs=-1, required=True, shell_complete=complete_models)
@json_option
@click.pass_obj
def validate(layers: Layers, specs: tuple[str, ...], as_json: bool) -> None:
    """Check each SPEC and report every problem of all of them."""
    registry = layers()
    report: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for spec in specs:
        found, wrong = _validate_one(spec, registry)
        problems += wrong
        report.append({"spec": spec, "valid": found is not None, **_told_of(found, wrong)})
    lines = [f"{one['spec']}: {one['name']} {one['digest']}" for one in report if one["valid"]]
    if as_json or lines:
        print_report(as_json, report, lambda _: "\n".join(lines))
    if problems:
        raise ZooError(problems)


def _validate_one(spec: str, registry: Registry) -> tuple[ModelSpec | None, Sequence[Problem]]:
    try:
        found = zoo.read_spec(spec, registry=registry)
        _ = found.n_parameters  # the layout has to be sound too
    except ZooError as error:
        return None, error.problems
    return found, ()


def _told_of(found: ModelSpec | None, problems: Sequence[Problem]) -> dict[str, Any]:
    if found is not None:
        return {"name": found.name, "digest": found.digest, "parameters": found.n_parameters}
    told = [(one, one.place or Place("")) for one in problems]
    return {
        "problems": [
            {
                "message": one.message,
                "file": place.file or None,
                "line": place.line,
                "column": place.column,
                "help": one.help,
            }
            for one, place in told
        ]
    }


@click.command()
@spec_argument
@click.option("--resolved", is_flag=True, help="The full form, each value with its origin.")
@click.option("--tensors", is_flag=True, help="The name and shape of every stored tensor.")
@click.option("--backends", is_flag=True, help="What computes each attention, and why.")
@click.option(
    "--flops",
    metavar="TOKENS",
    type=click.IntRange(min=1),
    help="What a forward pass of so many tokens costs; imports torch.",
)
@click.option(
    "--svg", type=click.Path(path_type=Path), help="Draw the architecture into this SVG file."
)
@json_option
@click.pass_obj
def show(
    layers: Layers,
    spec: str,
    resolved: bool,
    tensors: bool,
    backends: bool,
    flops: int | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show the parts, parameters and sizes of a model.

    SPEC is a file, a model's name or a weights file.
    """
    flags = {
        "--resolved": resolved,
        "--tensors": tensors,
        "--backends": backends,
        "--flops": flops is not None,
    }
    asked = [flag for flag, given in flags.items() if given]
    if len(asked) > 1:
        raise click.UsageError(f"{asked[0]} and {asked[1]} are two views; take one")
    from zoo import show as views
    from zoo.reading import read_source

    found, _ = read_source(spec, layers())
    if svg is not None:
        from zoo.atomic import write_text
        from zoo.drawing import to_svg

        write_text(svg, to_svg(found))
    if resolved:
        print_report(as_json, found.to_dict(), lambda _: views.resolved_text(found))
    elif tensors:
        print_report(as_json, views.tensors_data(found), views.tensors_text)
    elif backends:
        print_report(as_json, views.backends_data(found), views.backends_text)
    elif flops is not None:
        from zoo.flops import flops_data, flops_text

        print_report(as_json, flops_data(found, flops), flops_text)
    elif svg is None or as_json:
        print_report(
            as_json, views.summary_data(found), lambda data: views.summary_text(found, data)
        )


@click.command()
@click.argument("a", shell_complete=complete_models)
@click.argument("b", shell_complete=complete_models)
@json_option
@click.pass_obj
def diff(layers: Layers, a: str, b: str, as_json: bool) -> int:
    """Compare two models: their specs, then their tensors.

    A and B are each a spec file, a model's name or a weights file. Tensors are compared by digest
    when both are weights. The exit status is 1 when the models differ.
    """
    from zoo.diff import Side, diff_data, diff_text

    registry = layers()
    data = diff_data(Side.read(a, registry), Side.read(b, registry))
    print_report(as_json, data, diff_text)
    return 0 if data["equal"] else 1


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for the schema.")
@click.pass_obj
def schema(layers: Layers, output: Path | None) -> None:
    """Print the JSON Schema of specs, for editors.

    It knows the installed plugins.
    """
    from zoo.atomic import write_text
    from zoo.schema import schema_text, spec_schema

    made, problems = spec_schema(layers())
    for problem in problems:
        click.echo(problem.render(), err=True)
    text = schema_text(made)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


@click.command("list")
@click.argument("what", required=False, metavar="[models|components]")
@click.argument("pattern", required=False)
@json_option
@click.pass_obj
def list_(layers: Layers, what: str | None, pattern: str | None, as_json: bool) -> None:
    """List the registered models and components.

    With a PATTERN (`rot*`), those whose name matches it; components also by their slot (`norm`).
    """
    from zoo.listing import listing_data, listing_text

    if what not in (None, "models", "components"):
        if pattern is not None:
            raise click.UsageError(f"{what!r} is neither 'models' nor 'components'")
        what, pattern = None, what
    print_report(as_json, listing_data(layers(), what, pattern), listing_text)
