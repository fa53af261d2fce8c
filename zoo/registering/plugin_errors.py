"""Report the failure of a plugin: what it raised, and where in its own code."""

from __future__ import annotations

import functools
import importlib
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pydantic

from zoo.errors import Place, PluginError, Problem, ZooError, is_interrupt
from zoo.wording import printable, quoted

MEND = "mend the plugin; nothing that does not use it is affected"
"""The help text where no more specific one is known."""
_OF_TORCH = {
    "before Module.__init__() call": "`__init__` of a module begins with `super().__init__()`",
    "cannot be called on meta tensors": "models are built, and their operations are counted, with "
    "tensors that have no values yet: what decides something in Python is a field or a shape",
}
"""The help for errors of torch, by a part of their text."""
_ZOO = Path(__file__).parent.parent
_RUNNERS = {
    folder
    for file in (functools.__file__, importlib.__file__, pydantic.__file__)
    for folder in (Path(file or "").parent, Path(file or "").parent / "_internal")
}
"""The folders of other code that calls plugins; its frames are left out."""


def _says_nothing(filename: str) -> bool:
    """Return whether frames of this file are not those of a plugin, but of the zoo, torch or the
    like."""
    folder = Path(filename).parent
    imported = [sys.modules[name] for name in ("torch", "stevedore") if name in sys.modules]
    packages = {_ZOO, *(Path(module.__file__ or "").parent for module in imported)}
    inside = not packages.isdisjoint((folder, *folder.parents))
    return filename.startswith("<") or folder in _RUNNERS or inside


@contextmanager
def plugin_code(what: str, at: Callable[[], Place] | None = None) -> Generator[None]:
    """Run plugin code in a `with` block.

    Whatever it raises, `AssertionError` and `SystemExit` included, becomes a `PluginError` that
    says that `what` failed, except `ZooError`, and interrupts, which stay `KeyboardInterrupt`. `at`
    returns the place that requests the plugin.
    """
    try:
        yield
    except ZooError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise PluginError(describe_failure(what, error, at() if at else None)) from error


def describe_failure(what: str, error: BaseException, place: Place | None = None) -> Problem:
    """Return a problem that shows the exception and the frames of the plugin, without those of the
    zoo and of torch."""
    frames = frames_of_plugins(traceback.extract_tb(error.__traceback__))
    lines = shown(frames)
    if isinstance(error, SyntaxError):
        lines.append(f"  {error.filename}:{error.lineno}: {(error.text or '').strip()}")
    message = "\n".join([f"{what} failed: {_headline(error)}", *lines])
    help = _missing(error, frames) or _not_imported(error, frames) or _frozen(error)
    return Problem(message, place, help or _of_torch(error) or MEND)


def frames_of_plugins(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of a stack that are of plugins and of what they import, except torch."""
    return [frame for frame in stack if not _says_nothing(frame.filename)]


def shown(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    """Return a line for each frame; of many, for the first ones, which are the plugin's, and the
    last ones, where it failed."""
    lines = [f"  {f.filename}:{f.lineno}, in {f.name}: {f.line}" for f in frames]
    return lines if len(lines) <= 8 else [*lines[:2], "  ...", *lines[-5:]]


def reason(problem: Problem) -> str:
    """Format a problem for a table of plugin checks: without the help text `MEND`."""
    return problem.message + (f"\nhelp: {problem.help}" if problem.help not in (None, MEND) else "")


def _missing(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> str | None:
    """Return a hint on how to provide a missing module; None if no module is missing."""
    if not isinstance(error, ImportError) or not frames:
        return None
    line = frames[-1].line or ""
    beside = Path(frames[-1].filename).parent
    if line.startswith("from .") or any(
        (beside / f"{word}.py").is_file() for word in (error.name or "").split(".")
    ):
        return (
            "a file that a registry names is imported by itself: what several components share "
            "stands in one file with them, or they are a package"
        )
    missing = isinstance(error, ModuleNotFoundError) and error.name
    return f"install {quoted(missing)}, which the plugin needs" if missing else None


def _not_imported(error: BaseException, frames: Sequence[traceback.FrameSummary]) -> str | None:
    """Return a hint for a name that the file imports where it is not seen; None for others."""
    if not isinstance(error, NameError) or error.name is None or not frames:
        return None
    text = "".join(linecache.getlines(frames[-1].filename))
    name = re.escape(error.name)
    if not re.search(rf"^ .*\bimport\b.*\b{name}\b", text, flags=re.MULTILINE):
        return None
    if (frames[-1].line or "").startswith("def ") and "annotations" not in _futures(text):
        return (
            "begin the file with `from __future__ import annotations`, by which types are not "
            "evaluated"
        )
    return (
        f"import {quoted(error.name)} in the function too that holds this code; what is imported "
        "under `TYPE_CHECKING` is for type checkers alone"
    )


def _futures(text: str) -> str:
    """Return the lines of a file that import from `__future__`."""
    return "".join(re.findall(r"^from __future__ import .*", text, flags=re.MULTILINE))


def _frozen(error: BaseException) -> str | None:
    """Return a hint for code that sets an attribute of a description; None for other errors."""
    if not isinstance(error, pydantic.ValidationError):
        return None
    hint = "a description cannot change: what follows from its fields is a property"
    return hint if error.errors(include_url=False)[0]["type"] == "frozen_instance" else None


def _of_torch(error: BaseException) -> str | None:
    """Return a hint for what torch says of a module; None for other errors."""
    return next((hint for words, hint in _OF_TORCH.items() if words in str(error)), None)


def _headline(error: BaseException) -> str:
    first = printable(str(error).split("\n")[0])
    if isinstance(error, pydantic.ValidationError):
        wrong = error.errors(include_url=False)[0]
        first = f"{quoted('.'.join(map(str, wrong['loc'])))}: {wrong['msg']}"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
