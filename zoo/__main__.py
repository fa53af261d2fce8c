"""The `zoo` command as a process: start fast, end fast."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and end the process.

    Start-up counts: `zoo list` should feel like `ls`. Imports make no garbage worth collecting, so
    the collector waits; pydantic's plugins are code that takes part merely by being installed,
    which the zoo's trust model excludes, and looking for them reads every package's metadata; and
    at the end there is nothing to tear down that the kernel does not do faster.
    """
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from zoo.cli import run

    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        status = status or 1
    os._exit(status)


if __name__ == "__main__":
    main()
