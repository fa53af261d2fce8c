"""Write docs/commands.md: every command with its options, from what `--help` tells.

python tools/command_page.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from cells import cell

from zoo.cli import COMMANDS, cli

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """\
# Commands

Every command with its arguments and options; `zoo COMMAND --help` prints the same. What all have in
common, such as `--json` and the exit status, is in [In scripts](#in-scripts).

Made by `python tools/command_page.py` from the commands.
"""
GROUPS: Mapping[str, Sequence[str]] = {
    "Building and looking": [
        "validate",
        "show",
        "build",
        "table",
        "diff",
        "bench",
        "list",
        "schema",
    ],
    "Running": ["run", "load"],
    "Training": ["train", "score", "results"],
    "Checkpoints of transformers": ["import", "export", "families", "lint"],
    "Named models": ["pull", "push", "store", "verify", "rm", "gc"],
    "Bundles": ["bundle", "lock"],
    "Extending": ["init", "plugin"],
}
AFTER = """\
## In scripts

Results are printed on the standard output; errors, warnings and progress on the standard error.

| exit status | |
|---|---|
| 0 | all is well |
| 1 | `zoo diff` has found differences, or the output cannot be written |
| 2 | something was refused, or found wrong |
| 130 | interrupted |

With `--json`, the standard output is one JSON value. Only `zoo run` writes several, one in a line
for each of several inputs. All commands have the option, except those that begin a project or a
plugin, and `zoo schema`, which writes JSON anyway.

- After an error there is no JSON. But commands that go on after an error (`pull`, `rm`, `gc`,
  `verify`, `store`, `validate`, `lint`, `plugin check`) print what they have found or done, and
  `push` what it has published, even if it could not write the model's file.
- A number that is not finite is `null`.
- The `path` of a command that writes is what it has written.
- A `dtype` has the name that `--dtype` takes; that of a single tensor is the one in the file, such
  as `F32`.
- The two [digests](load.md#digests) are always called `spec_digest` and `content_digest`.
- Later versions may add keys.

## Environment

| variable | |
|---|---|
| `ZOO_HOME` | the folder of [the store](share.md#the-store) |
| `ZOO_OFFLINE=1`, `HF_HUB_OFFLINE=1` | the network is never used |
| `HF_ENDPOINT`, `HF_TOKEN` | a mirror of the Hugging Face hub; the token for it |
| `https_proxy`, `all_proxy`, `no_proxy` | [proxies](share.md#proxies-and-offline) |
| `SSL_CERT_FILE` | the certificates that https trusts |
| `OMP_NUM_THREADS` | the number of threads of torch |
"""


def page() -> str:
    """The page's text."""
    lines = [HEAD, *listed()]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in names:
            lines += entry(name, command(name), "zoo")
    lines += ["", AFTER.rstrip(), "", "## Options of all commands", ""]
    lines += ["They come before the command, as in `zoo --registry mine.toml show tiny.toml`.", ""]
    lines += options(cli, click.Context(cli, info_name="zoo"))
    return "\n".join(lines) + "\n"


def command(name: str) -> click.Command:
    """The command of a name."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def listed() -> Iterator[str]:
    """A table of all commands."""
    yield from ["| command | |", "|---|---|"]
    for name in (name for names in GROUPS.values() for name in names):
        short = " ".join((command(name).help or "").split("\n\n")[0].split())
        yield f"| [`zoo {name}`](#zoo-{name}) | {cell(short)} |"


def entry(name: str, found: click.Command, parent: str) -> Iterator[str]:
    """A command, and those inside it."""
    context = click.Context(found, info_name=f"{parent} {name}")
    usage = " ".join(found.collect_usage_pieces(context))
    yield from ["", f"### zoo {name}", "", "```text", f"{parent} {name} {usage}", "```", ""]
    yield inspect.cleandoc(found.help or "")
    rows = options(found, context)
    if rows:
        yield from ["", *rows]
    if isinstance(found, click.Group):
        for inner in found.list_commands(context):
            one = found.get_command(context, inner)
            assert one is not None
            yield from entry(f"{name} {inner}", one, parent)


def options(found: click.Command, context: click.Context) -> list[str]:
    """The table of a command's options."""
    records = [
        parameter.get_help_record(context)
        for parameter in found.get_params(context)
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts
    ]
    rows = [
        f"| `{cell(option.replace(' RANGE', ''))}` | {cell(text)} |"
        for option, text in filter(None, records)
    ]
    return ["| option | |", "|---|---|", *rows] if rows else []


if __name__ == "__main__":
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    PAGE.write_text(page())
