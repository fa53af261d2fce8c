"""Commands for plugin authors: `zoo init`, `zoo plugin new`, `zoo plugin check`."""

from __future__ import annotations

import gc
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.cli.options import NameType, Registries, json_option, path_type
from zoo.cli.output import print_json
from zoo.cli.progress import count_bar

if TYPE_CHECKING:
    from zoo.registry import Registry


@click.command()
@click.argument("folder", type=path_type, default=Path(), metavar="[DIR]")
def init(folder: Path) -> None:
    """Make a project: a registry, a component with a test, a spec.

    It is made in DIR, by default here.
    """
    from zoo.plugin_kit.project import new_project

    for path in new_project(folder):
        click.echo(path)


@click.group()
def plugin() -> None:
    """Write components and sources of your own, and check them."""


@plugin.command()
@click.argument("slot", type=NameType(lambda registry: [*registry.plugins, "source"]))
@click.argument("name")
@click.pass_context
def new(context: click.Context, slot: str, name: str) -> None:
    """Write and register a new component, for you to change.

    This writes plugins/NAME.py, a working component for SLOT, and its test, and registers it in
    the nearest registry.toml, or that of --registry. With `source` as SLOT, it is a place that
    published models come from.
    """
    from zoo.plugin_kit.project import nearest_registry, new_plugin

    registry: Path | None = context.find_root().params["registry"]
    registry = nearest_registry() if registry is None else registry
    for path in new_plugin(slot, name, registry):
        click.echo(path)
    click.echo(f"registered in {registry}")


def _table(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> dict[str, Any] | None:
    """Parse the inline table of an option, if it is given. Raises BadParameter."""
    import tomllib

    try:
        table = None if text is None else tomllib.loads(f"table = {text}")["table"]
    except tomllib.TOMLDecodeError:
        table = text
    if table is None or isinstance(table, dict):
        return table
    raise click.BadParameter(f"{text} is no table of TOML, such as '{{ n_experts = 4 }}'")


def _plugins(registry: Registry) -> list[str]:
    """Return what can be checked, as `ffn.mlp` and `source.local`."""
    from zoo.reports.listing import every_plugin

    return every_plugin(registry)


@plugin.command()
@click.argument("names", nargs=-1, type=NameType(_plugins))
@click.option(
    "--values",
    metavar="TABLE",
    callback=_table,
    help="The values of its fields, such as '{ n_experts = 4 }', instead of its `example`; of a "
    "source, those of a place to read.",
)
@json_option
@click.pass_obj
def check(
    registries: Registries, names: tuple[str, ...], values: dict[str, Any] | None, as_json: bool
) -> int:
    """Check plugins: those that match NAMES, or all.

    A name is one as in `ffn.mlp`, or a pattern as for `zoo list`: `position.*`, `rotary*`, `ffn`.
    Each is built into a small model, which must pass the checks that docs/plugin-reference.md
    lists. A source, as in `source.local`, must pass those of docs/share.md.
    """
    registry = registries()
    from zoo.plugin_kit.check import check_plugins
    from zoo.plugin_kit.report import Report, failures
    from zoo.reports.listing import every_plugin, matching_plugins

    matching = (matching_plugins(name, registry) or [name] for name in names)
    wanted = list(dict.fromkeys(chain.from_iterable(matching))) or every_plugin(registry)
    if values is not None and len(wanted) > 1:
        raise click.UsageError(f"--values are those of one plugin, not of {len(wanted)}")
    gc.enable()
    with count_bar("checking", len(wanted)) as bar:

        def on_done(report: Report) -> None:
            if not as_json:
                with bar.aside():
                    click.echo(report.text())
            bar.advance()
            bar.describe(report.plugin)

        reports = check_plugins(wanted, registry, values=values, on_done=on_done)
    if as_json:
        print_json([report.data() for report in reports])
    elif failed := failures(reports):
        click.echo(failed)
    return 0 if all(report.ok for report in reports) else 2
