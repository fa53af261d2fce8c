"""Options and argument types shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoo.arguments import unexpanded_home
from zoo.errors import ZooError

if TYPE_CHECKING:
    from click.decorators import FC
    from click.shell_completion import CompletionItem

    from zoo.registry import Registry

Registries = Callable[[], "Registry"]
"""The object that `pass_obj` gives to a command. It reads the registries when it is called."""

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
dtype_choice = click.Choice(["float32", "float64", "float16", "bfloat16"])
device_option = click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Compute on this device, such as `cuda` or `mps`.",
)
weights_option = click.option(
    "--weights",
    type=click.Choice(["int8"]),
    help="Keep large matrices in 8 bits, in a quarter of float32's memory.  [default: as loaded]",
)


def _bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parse the number of bytes of an option, if it is given. Raises BadParameter."""
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


class PathType(click.Path):
    """A path that is not empty: an empty one, as from an unset variable, would be the working
    directory. With an `ending` such as ".svg", other suffixes are refused, so that a picture never
    overwrites a spec."""

    def __init__(self, ending: str = "") -> None:
        super().__init__(path_type=Path)
        self.ending = ending

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path. Raises BadParameter if it is empty, begins with a `~`, or has another
        suffix."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        if home := unexpanded_home(Path(value)):
            self.fail(home, param, ctx)
        if self.ending and Path(value).suffix.lower() != self.ending:
            bare = Path(value).name.lower() == self.ending
            told = "has no name before" if bare else "does not end with"
            self.fail(f"{value} {told} {self.ending}", param, ctx)
        return super().convert(value, param, ctx)


path_type = PathType()


def folder_option(*names: str, help: str, required: bool = False) -> Callable[[FC], FC]:
    """An option that takes a folder, which need not be there."""
    return click.option(*names, metavar="DIR", type=path_type, required=required, help=help)


def count_option(name: str, *, least: int, default: int, help: str) -> Callable[[FC], FC]:
    """An option of how many there are."""
    kind = click.IntRange(least)
    return click.option(name, type=kind, default=default, show_default=True, help=help)


class AddressType(PathType):
    """A path, or an address such as `hf://owner/name`, which stays a text."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path or the address. Raises BadParameter if it is empty."""
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)


class NameType(click.types.StringParamType):
    """A name that shells complete: from the names that `known` returns of a registry and, with
    `files`, from files."""

    def __init__(self, known: Callable[[Registry], Iterable[str]], *, files: bool = False) -> None:
        self.known = known
        self.files = files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The completions for a shell: files, and names that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        from zoo.registry import load_registry

        try:
            names = set(self.known(load_registry(ctx.find_root().params.get("registry"))))
        except ZooError:
            names = set()
        # Files come first: if they come after the names, bash drops the names.
        files = [CompletionItem(incomplete, type="file")] if self.files else []
        found = [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
        return [*files, *found]


def models(registry: Registry) -> Iterable[str]:
    """Return the names of models, and their other names."""
    return [*registry.models, *registry.catalog.known()]


class ModelType(NameType):
    """A file, a folder or the name of a model, or one of the names that `more` returns."""

    def __init__(self, more: Callable[[Registry], Iterable[str]] = lambda _: ()) -> None:
        super().__init__(lambda registry: [*models(registry), *more(registry)], files=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value unchanged. Raises BadParameter if it is empty."""
        if not value:
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


model_type = ModelType()
