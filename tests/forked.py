"""Processes that begin with what training imports, which takes longer than a short run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from zoo.cli import run

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("zoo.training.train", "accelerate", "torch._dynamo", "torch.distributed.checkpoint"),
        "matplotlib.figure",
    ]
)


def forked(function: Callable[..., None], *arguments: Any) -> int | None:
    """Call a function of a module, in this working directory and environment; return the status of
    the process, as `subprocess` does."""
    called = (function, arguments, Path.cwd(), {**os.environ})
    process = CONTEXT.Process(target=_called, args=called)
    process.start()
    process.join(300)
    process.kill()
    return process.exitcode


def forked_command(*arguments: object) -> tuple[int, str, str]:
    """Run a command of the zoo; return its exit status, stdout and stderr."""
    ours, theirs = CONTEXT.Pipe()
    assert forked(_command, [str(argument) for argument in arguments], theirs) == 0
    told: tuple[int, str, str] = ours.recv()
    return told


def _called(
    function: Callable[..., None],
    arguments: Sequence[Any],
    folder: Path,
    environment: Mapping[str, str],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environment
    function(*arguments)


def _command(arguments: Sequence[str], pipe: Connection) -> None:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run(arguments)
    pipe.send((status, out.getvalue(), err.getvalue()))
