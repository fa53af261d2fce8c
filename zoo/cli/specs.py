"""Commands for specs: `zoo build`, `validate`, `show`, `diff`, `table`, `schema`, `list`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zoo
from zoo.cli.options import (
    ModelType,
    NameType,
    PathType,
    Registries,
    dtype_choice,
    folder_option,
    json_option,
    max_shard_bytes_option,
    model_type,
    models,
)
from zoo.cli.output import print_report
from zoo.errors import Place, Problem, SpecError, ZooError
from zoo.wording import quoted

if TYPE_CHECKING:
    from zoo.registry import Registry
    from zoo.spec import ModelSpec

_MOST_WITH_KEY = 3
"""The most components that are named for a key."""


@click.command()
@click.argument("spec", type=model_type)
@folder_option(
    "-o",
    "--output",
    help="Folder for the model.safetensors, or a .safetensors file.  [default: the model's name]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Seed of the initial weights: the same spec and seed give the same bytes everywhere.",
)
@click.option(
    "--dtype",
    type=dtype_choice,
    default="float32",
    show_default=True,
    help="Dtype of the weights, which are computed in float32 and then cast.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Device to build on; `meta` checks the build and writes nothing.",
)
@max_shard_bytes_option
@click.option(
    "--locked", is_flag=True, help="Refuse anything that differs from the zoo.lock beside SPEC."
)
@json_option
@click.pass_obj
def build(
    registries: Registries,
    spec: str,
    output: Path | None,
    seed: int,
    dtype: str,
    device: str,
    max_shard_bytes: int | None,
    locked: bool,
    as_json: bool,
) -> None:
    """Build a model and save its initial weights, with the spec.

    SPEC is a file or a model's name.
    """
    registry = registries()
    found = zoo.read_spec(spec, registry=registry)
    if locked:
        from zoo.provenance.lock import check_locked
        from zoo.reading import find_document

        check_locked(found, Path(find_document(spec, registry).name).parent)
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
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=model_type)
@folder_option("-d", "--data", help="Folder of the data files of recipes.  [default: the recipe's]")
@json_option
@click.pass_obj
def validate(
    registries: Registries, files: tuple[str, ...], data: Path | None, as_json: bool
) -> None:
    """Check specs and recipes, and report every problem.

    Each FILE is a spec, a recipe for training, or the name of a registered model. A recipe is
    checked with its model, its data and its tokenizer, as at the start of `zoo train`.
    """
    registry = registries()
    report: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for file in files:
        try:
            told = _validate_one(file, data, registry)
        except ZooError as error:
            problems += error.problems
            report.append(
                {"spec": file, "valid": False, "problems": _problems_data(error.problems)}
            )
        else:
            report.append({"spec": file, "valid": True, **told})
    lines = [_valid_text(one) for one in report if one["valid"]]
    if as_json or lines:
        print_report(as_json, report, lambda _: "\n".join(lines))
    if problems:
        raise ZooError(problems)


def _validate_one(file: str, data: Path | None, registry: Registry) -> dict[str, Any]:
    """Check a spec, or a recipe with its model; return the report of a valid one."""
    from zoo.file_kinds import is_recipe
    from zoo.reading import find_document, spec_of

    document = find_document(file, registry)
    if not is_recipe(document):
        found = spec_of(document, registry)
        return {
            "name": found.name,
            "spec_digest": found.digest,
            "parameters": found.n_parameters,
        }
    from zoo.training.checking import check_recipe
    from zoo.training.recipe import recipe_of

    recipe = recipe_of(document)
    spec, splits = check_recipe(recipe, recipe.folder if data is None else data, registry)
    for note in (*recipe.notes(), *(splits.notes() if splits else ())):
        click.echo(f"{file}: {note}", err=True)
    return {
        "name": recipe.head.name,
        "model": spec.name,
        "spec_digest": spec.digest,
        "parameters": spec.n_parameters,
        "examples": splits and {part: len(found) for part, found in splits.parts.items()},
        "data_digest": splits and splits.digest,
    }


def _valid_text(report: dict[str, Any]) -> str:
    told = f"{report['spec']}: {report['name']}"
    if "model" not in report:
        return f"{told} {report['spec_digest']}"
    told = f"{told}, model: {report['model']} {report['spec_digest']}"
    if report["examples"] is None:
        return told
    counts = ", ".join(f"{n:,} {part}" for part, n in report["examples"].items() if n)
    return f"{told}, data: {report['data_digest']}, examples: {counts}"


def _problems_data(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    told = [(one, one.place or Place("")) for one in problems]
    return [
        {
            "message": one.message,
            "file": place.file or None,
            "line": place.line,
            "column": place.column,
            "help": one.help,
        }
        for one, place in told
    ]


@click.command()
@click.argument("spec", type=ModelType(lambda registry: registry.components()))
@click.option("--resolved", is_flag=True, help="The full spec, each value with its origin.")
@click.option("--tensors", is_flag=True, help="The name and shape of every stored tensor.")
@click.option("--backends", is_flag=True, help="Which backend computes each attention, and why.")
@click.option(
    "--flops",
    metavar="N",
    type=click.IntRange(min=1),
    help="The operations of a forward pass of N tokens, or images; imports torch.",
)
@click.option("--svg", type=PathType(".svg"), help="Draw the architecture into this SVG file.")
@json_option
@click.pass_obj
def show(
    registries: Registries,
    spec: str,
    resolved: bool,
    tensors: bool,
    backends: bool,
    flops: int | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show the parts and sizes of a model, or the keys of a component.

    SPEC is a spec file, a model's name, or a weights file or its folder; or a component, such as
    `ffn.glu`.
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
    from zoo.reading import component_named
    from zoo.store.found_spec import read_source

    registry = registries()
    if component := component_named(spec, registry):
        if asked or svg is not None:
            flag = asked[0] if asked else "--svg"
            raise click.UsageError(f"{spec} is a component, and {flag} is a view of models")
        _show_component(registry, *component, as_json=as_json)
        return
    _refuse_key(spec, registry)
    found, _ = read_source(spec, registry)
    if svg is not None:
        from zoo.drawing import to_svg
        from zoo.files.atomic import write_text

        write_text(svg, to_svg(found))
    if svg is None or asked or as_json:
        data, text = _view(found, asked[0] if asked else "", flops)
        print_report(as_json, data, text)
    else:
        click.echo(svg)


def _refuse_key(name: str, registry: Registry) -> None:
    """Raise SpecError, with the command that explains it, if a name is that of a key of specs, and
    of nothing else."""
    kinds = {kind for of_slot in registry.plugins.values() for kind in of_slot}
    if not name.isidentifier() or name in {*registry.plugins, *registry.models, *kinds}:
        return
    if any(map(os.path.lexists, (name, f"{name}.toml"))) or registry.catalog.file(name) is not None:
        return
    from zoo.reports.component import components_with_key

    if found := components_with_key(registry, name):
        told = " or ".join(f"`zoo show {one}`" for one in found[:_MOST_WITH_KEY])
        message = f"{quoted(name)} is a key of specs, not a model"
        raise SpecError(message, help=f"{told} says what it means")


def _view(spec: ModelSpec, flag: str, flops: int | None) -> tuple[Any, Callable[[Any], str]]:
    """Return what an option shows of a model, as data, and what formats it as text; without an
    option, the summary."""
    from zoo.showing import show as views

    if flag == "--resolved":
        return spec.to_dict(), lambda _: views.resolved_text(spec)
    if flag == "--tensors":
        return views.tensors_data(spec), views.tensors_text
    if flag == "--backends":
        return views.backends_data(spec), views.backends_text
    if flops is not None:
        from zoo.reports.flops import flops_text

        return zoo.flops(spec, flops), flops_text
    return spec.summary(), views.summary_text


def _show_component(registry: Registry, slot: str, kind: str, *, as_json: bool) -> None:
    """Print the keys of a component."""
    from zoo.reports.component import component_data, component_json, component_text

    described = component_data(registry, slot, kind)
    text = component_text(described, registry)
    print_report(as_json, component_json(described), lambda _: text)


@click.command()
@click.argument("a", type=model_type)
@click.argument("b", type=model_type)
@json_option
@click.pass_obj
def diff(registries: Registries, a: str, b: str, as_json: bool) -> int:
    """Compare two models: their specs, then their tensors.

    A and B are each a spec file, a model's name, or a weights file or its folder. Tensors are
    compared by digest if both are weights. The exit status is 1 if the models differ.
    """
    from zoo.reports.diff import diff_text

    data = zoo.diff(a, b, registry=registries())
    print_report(as_json, data, diff_text)
    return 0 if data["equal"] else 1


@click.command()
@click.argument("specs", nargs=-1, required=True, type=model_type)
@click.option(
    "--flops",
    metavar="N",
    type=click.IntRange(min=1),
    help="Also the operations of a forward pass of N tokens, or images, and what generation keeps "
    "of N tokens; imports torch.",
)
@json_option
@click.pass_obj
def table(registries: Registries, specs: tuple[str, ...], flops: int | None, as_json: bool) -> None:
    """Compare many models in a table: sizes, and values that differ.

    SPECS are each a spec file, a model's name, or a weights file or its folder. A value that
    differs between layers is listed for all of them.
    """
    from zoo.reports.table import table_text

    print_report(as_json, zoo.table(specs, flops, registry=registries()), table_text)


@click.command()
@click.argument("what", type=click.Choice(["spec", "recipe"]), default="spec")
@click.option(
    "-o", "--output", type=PathType(".json"), help="File for the schema.  [default: stdout]"
)
@click.pass_obj
def schema(registries: Registries, what: str, output: Path | None) -> None:
    """Print the JSON Schema of specs or recipes, for editors.

    It has all registered components. With `recipe`, it is the schema of recipes for training.
    """
    from zoo.files.atomic import write_text
    from zoo.schema.specs import schema_text, spec_schema

    if what == "recipe":
        from zoo.schema.recipes import recipe_schema

        made = recipe_schema()
    else:
        made, problems = spec_schema(registries())
        for problem in problems:
            click.echo(problem.render(), err=True)
    text = schema_text(made)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)
        click.echo(output)


def _listed(registry: Registry) -> Iterable[str]:
    return [*models(registry), *registry.plugins, *registry.components(), "source"]


@click.command("list")
@click.argument(
    "what",
    required=False,
    metavar="[models|components|sources]",
    type=NameType(lambda registry: ["models", "components", "sources", *_listed(registry)]),
)
@click.argument("pattern", required=False, type=NameType(_listed))
@json_option
@click.pass_obj
def list_(registries: Registries, what: str | None, pattern: str | None, as_json: bool) -> None:
    """List the registered models, components and sources.

    With a PATTERN (`rot*`), only those whose name matches, or the components of a slot (`norm`).
    Sources are where published models come from.
    """
    from zoo.reports.listing import GROUPS, listing_data, listing_text

    if what not in (None, *GROUPS):
        if pattern is not None:
            raise click.UsageError(f"{what!r} is none of {', '.join(map(repr, GROUPS))}")
        what, pattern = None, what
    print_report(as_json, listing_data(registries(), what, pattern), listing_text)
