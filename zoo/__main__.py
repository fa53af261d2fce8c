"""The `zoo` command as a process: start fast, end fast."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings
from typing import TextIO


def main() -> None:
    """Run the command line and end the process.

    Start-up counts: `zoo list` should feel like `ls`. Imports make no garbage worth collecting, so
    the collector waits; pydantic's plugins are code that takes part merely by being installed,
    which the zoo's trust model excludes, and looking for them reads every package's metadata; and
    at the end there is nothing to tear down that the kernel does not do faster.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _make_writable()
    warnings.showwarning = _show_warning
    if "LOCAL_RANK" not in os.environ:  # not where processes wait for each other, deaf to handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # not ignored, as under nohup
                # As Ctrl-C: what is half written goes, and half of a download is kept for the next.
                signal.signal(number, signal.default_int_handler)
    try:
        from zoo.cli import run

        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = 1
    except OSError as error:
        if error.filename is not None:  # not of a stream, so no mistake that is foreseen
            raise
        sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in the words of the zoo's errors, without the line of code that gives it."""
    sys.stderr.write(f"warning: {message}\n")


def _make_writable() -> None:
    """A closed stream swallows what is written, and no character is too much for a terminal."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
