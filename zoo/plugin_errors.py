"""How the failure of somebody's plugin is told: what it raised and where, in its own code."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pydantic

from zoo.errors import PluginError, Problem, ZooError, printable

# Code that runs plugins; its frames say nothing of theirs.
_RUNNERS = [Path(file or "").parent for file in (__file__, importlib.__file__, pydantic.__file__)]


@contextmanager
def plugin_code(what: str) -> Iterator[None]:
    """Runs code of plugins. Whatever it raises, `AssertionError` and `SystemExit` included, becomes
    a `PluginError` that says `what` failed."""
    try:
        yield
    except (ZooError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(describe_failure(what, error)) from error


def describe_failure(what: str, error: BaseException) -> Problem:
    """A problem that shows the exception and the frames of the plugin, without the zoo's own."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and not any(Path(frame.filename).is_relative_to(runner) for runner in _RUNNERS)
    ]
    lines = [f"  {f.filename}:{f.lineno}, in {f.name}: {f.line}" for f in frames]
    if isinstance(error, SyntaxError):
        lines.append(f"  {error.filename}:{error.lineno}: {(error.text or '').strip()}")
    message = "\n".join([f"{what} failed: {_headline(error)}", *lines[-8:]])
    return Problem(message, help="mend the plugin; nothing that does not use it is affected")


def _headline(error: BaseException) -> str:
    first = printable(str(error).split("\n")[0])
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
