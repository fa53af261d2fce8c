"""How the failure of somebody's plugin is told: what it raised and where, in its own code."""

from __future__ import annotations

import traceback
from pathlib import Path

from zoo.errors import Problem

_CORE = Path(__file__).parent


def describe_failure(what: str, error: BaseException) -> Problem:
    """A problem that shows the exception and the frames of the plugin, without the zoo's own."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent != _CORE and not frame.filename.startswith("<frozen")
    ]
    lines = [f"  {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    if isinstance(error, SyntaxError):
        lines.append(f"  {error.filename}:{error.lineno}: {(error.text or '').strip()}")
    message = "\n".join([f"{what} failed: {_headline(error)}", *lines[-8:]])
    return Problem(message, help="the plugin's code has to be mended; the zoo only ran it")


def _headline(error: BaseException) -> str:
    first = str(error).split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
