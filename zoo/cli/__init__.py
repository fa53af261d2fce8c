"""The command line. Each command is in the module of this package that `COMMANDS` names, which is
imported when the command is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

import zoo
from zoo.cli.options import path_type
from zoo.errors import Problem, ZooError, is_interrupt, is_out_of_memory
from zoo.wording import nearest

if TYPE_CHECKING:
    from zoo.registry import Registry

USER_ERROR = 2
COMMANDS: Mapping[str, str] = {
    "bench": "benching.bench",
    "build": "specs.build",
    "bundle": "bundles.bundle",
    "diff": "specs.diff",
    "export": "families.export",
    "families": "families.families",
    "gc": "store.gc",
    "import": "families.import_",
    "init": "plugins.init",
    "lint": "families.lint",
    "list": "specs.list_",
    "load": "bundles.load",
    "lock": "bundles.lock",
    "plugin": "plugins.plugin",
    "pull": "store.pull",
    "push": "store.push",
    "results": "training.results",
    "rm": "store.rm",
    "run": "running.run",
    "schema": "specs.schema",
    "score": "training.score",
    "show": "specs.show",
    "store": "store.store",
    "table": "specs.table",
    "train": "training.train",
    "validate": "specs.validate",
    "verify": "store.verify",
}
OTHER_WORDS: Mapping[str, str] = {
    "bench MODEL": "benchmark profile time",
    "bundle sign DIR --key PEM": "sign",
    "diff A B": "compare",
    "export MODEL --to hf -o DIR": "convert",
    "import SRC": "convert",
    "import SRC --adapter DIR": "merge",
    "init DIR": "create new",
    "list components": "components",
    "list models": "models",
    "list PATTERN": "find ls search",
    "plugin check SLOT.NAME": "check test",
    "plugin new SLOT NAME": "create new",
    "pull MODEL": "download fetch get",
    "push MODEL ADDRESS": "publish upload",
    "rm MODEL": "delete remove",
    "run MODEL --chat": "chat",
    "run MODEL --line-buffered": "serve",
    "run MODEL TEXT": "classify complete embed generate infer predict sample translate",
    "run MODEL TEXT --weights int8": "quantize",
    "score MODEL --data PATH": "eval evaluate perplexity test",
    "show MODEL": "describe info inspect params print summary",
    "show MODEL --flops N": "flops",
    "show MODEL --svg FILE.svg": "diagram draw picture plot",
    "show SLOT.NAME": "explain",
    "table MODEL MODEL": "compare",
    "train RECIPE": "finetune fit",
    "validate FILE": "check",
    "--help": "help",
    "--version": "version",
}
"""What is typed behind `zoo`, and the commands of other programs that it stands for."""

OTHER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "import": {
        "--dtype --bf16 --fp16": "an import keeps the dtypes; in Python, "
        "`zoo.save(zoo.load(DIR, dtype=...), OUT)` writes another",
    },
    "run": {
        "--bf16 --fp16": "`--dtype` names one, such as `--dtype bfloat16`",
        "--gpu --cuda": "`--device cuda` computes on a GPU",
        "--int8 --quantize --load-in-8bit": "`--weights int8` keeps matrices in 8 bits",
        "--max-length": "`--max-new-tokens` says how many are generated",
    },
    "show": {"--diagram --draw --picture --plot": "`--svg FILE.svg` draws a model"},
    "train": {
        "--batch-size": "a recipe states `batch_tokens` in `[training]`",
        "--epochs --max-steps --steps": "a recipe states `steps` in `[training]`; how many are an "
        "epoch is printed before the first",
        "--learning-rate --lr": "a recipe states `lr` in `[optimizer]`",
    },
}
"""By the name of a command, the options of other programs, and what stands for them here."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status: 0, or 2 for a mistake of the user; `diff` returns
    1 for models that differ."""
    try:
        # The result of the command, which may be None; for `--help` and the like, its status.
        return cli.main(list(arguments), prog_name="zoo", standalone_mode=False) or 0
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, click.Abort) or is_interrupt(error):
            click.echo("interrupted", err=True)
            return 130
        if isinstance(error, ZooError):
            click.echo(str(error), err=True)
            return USER_ERROR
        if isinstance(error, click.ClickException):
            _with_other_words(error).show()
            return error.exit_code
        if (lack := _lack(error)) is not None:
            click.echo(str(ZooError(lack)), err=True)
            return USER_ERROR
        raise


def _with_other_words(error: click.ClickException) -> click.ClickException:
    """Return the error for an option of another program, with what stands for it here; any other
    error as it is."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        for words, told in OTHER_OPTIONS.get(error.ctx.info_name or "", {}).items():
            if error.option_name in words.split():
                return click.UsageError(f"No such option {error.option_name!r}: {told}", error.ctx)
    return error


def _lack(error: BaseException) -> Problem | None:
    """Return the problem that the machine gives the process no more memory or threads, which may
    come anywhere; None for any other error."""
    why = str(error).split("\n")[0]
    if is_out_of_memory(error):
        message = f"there is not enough memory{f': {why}' if why else ''}"
        return Problem(message, help="a smaller batch, dtype or model takes less")
    if isinstance(error, RuntimeError) and why == "can't start new thread":
        message = "the system starts no more threads for this process"
        return Problem(message, help="`ulimit -u`, or the limit of the container, says how many")
    return None


class Commands(click.Group):
    """Imports a command when it is called, so that no command waits for the import of others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(".")
        command: click.Command = getattr(import_module(f"zoo.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises UsageError with what does it, or with
        the nearest name."""
        if args and args[0] not in COMMANDS:
            word, near = args[0].lower(), nearest(args[0], COMMANDS)
            found = [typed for typed, words in OTHER_WORDS.items() if word in words.split()]
            if found := found or ([near] if near else []):
                told = " or ".join(f"`zoo {one}`" for one in found)
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean {told}?", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(zoo.__version__, prog_name="zoo")
@click.option(
    "--registry",
    type=path_type,
    help="A further registry.toml, before those of the user and the working directory.",
)
@click.option(
    "--budget",
    metavar="NAME=NUMBER",
    multiple=True,
    help="Raise or lower a limit: parameters, layers, bytes, file_size, key_depth.",
)
@click.pass_context
def cli(context: click.Context, registry: Path | None, budget: tuple[str, ...]) -> None:
    """Transformers from declarative specs: build, inspect and share them."""

    def registries() -> Registry:
        from zoo.budget import Budget
        from zoo.registry import load_registry

        return load_registry(registry, budget=Budget.from_options(budget))

    context.obj = registries
