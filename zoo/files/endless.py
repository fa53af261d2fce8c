"""What a user names as a file may be something that never ends."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def check_ends(path: Path) -> None:
    """Refuse a named pipe and a device, which could be read without end.

    What is below `/dev/fd` is allowed, and `/dev/stdin`, so that a shell's `<(command)` and `|` can
    be used. A folder is allowed too: to open it fails.

    Raises:
        OSError: it is such a thing, or there is no such file.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or _is_passed(path)):
        kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def _is_passed(path: Path) -> bool:
    """Return whether a path names what the shell has opened for this process."""
    return str(path) == "/dev/stdin" or str(path.parent) in ("/dev/fd", "/proc/self/fd")
