"""Commands for plugin authors: `zoo init`, `zoo plugin new`, `zoo plugin check`."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zoo.cli_output import print_report

if TYPE_CHECKING:
    from zoo.plugin_report import Report
    from zoo.registry import Registry


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path(), metavar="[DIR]")
def init(folder: Path) -> None:
    """Make a project in DIR, by default here: a registry, a component with its test, a spec."""
    from zoo.project import new_project

    for path in new_project(folder):
        click.echo(path)


@click.group()
def plugin() -> None:
    """Write components of your own, and check them."""


@plugin.command()
@click.argument("slot")
@click.argument("name")
@click.pass_context
def new(context: click.Context, slot: str, name: str) -> None:
    """Write plugins/NAME.py, a component for SLOT that works and waits to be changed, and its test,
    and register it in the nearest registry.toml, or that of --registry."""
    from zoo.project import nearest_registry, new_plugin

    registry: Path | None = context.find_root().params["registry"]
    registry = nearest_registry() if registry is None else registry
    for path in new_plugin(slot, name, registry):
        click.echo(path)
    click.echo(f"registered in {registry}")


@plugin.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_obj
def check(layers: Callable[[], Registry], names: tuple[str, ...], as_json: bool) -> int:
    """Check the plugins NAMES, as in `ffn.mlp`, or all that are registered.

    Each is built on its own into a small model, which must keep what docs/plugins.md lists.
    """
    registry = layers()
    from zoo.plugin_check import check_plugins, every_plugin
    from zoo.plugin_report import summary

    wanted = names or every_plugin(registry)
    gc.enable()
    # A plugin that prints must not spoil the output.
    with _progress(len(wanted)) as on_done, contextlib.redirect_stdout(sys.stderr):
        reports = check_plugins(wanted, registry, on_done=on_done)
    data = [report.data() for report in reports]
    print_report(as_json, data, lambda _: summary(reports))
    return 0 if all(report.ok for report in reports) else 2


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Report], None] | None]:
    """A progress bar on stderr, shown only when that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=total)
        yield lambda report: progress.update(task, advance=1, description=report.plugin)
