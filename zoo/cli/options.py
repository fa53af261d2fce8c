"""What several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from zoo.registry import Registry

Layers = Callable[[], "Registry"]
"""What `pass_obj` hands to a command: loads the registries, when the command needs them."""

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
dtype_choice = click.Choice(["float32", "float64", "float16", "bfloat16"])


def _bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """The number of bytes that an option says, if it is given. Raises BadParameter."""
    from zoo.byte_counts import parse_bytes

    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


max_shard_bytes_option = click.option(
    "--max-shard-bytes",
    metavar="BYTES",
    callback=_bytes,
    help="Write shards of at most so many bytes of tensors (5e9, 500MB, 2GiB), with their index.",
)


def complete_models(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """What a shell offers for an argument that means a model: files, and names that begin so."""
    from click.shell_completion import CompletionItem

    from zoo.errors import ZooError
    from zoo.registry import load_registry

    try:
        registry = load_registry(context.find_root().params.get("registry"))
        names = {*registry.models, *registry.catalog.known()}
    except ZooError:
        names = set()
    # Files come first: where they stand behind them, bash forgets the names.
    found = [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
    return [CompletionItem(begun, type="file"), *found]
