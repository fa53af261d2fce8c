"""The memory limit of the process, to refuse work for which the kernel would kill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the most bytes that this process can have: the memory plus the swap of the machine, or
    less if its cgroup, or one around it, has a lower limit. Memory used by other processes is not
    subtracted, since they may end or be swapped out. More than this never works; less may fail too.

    Args:
        root: the root of the file system with `proc` and `sys`.

    Returns:
        The limit; None if it is unknown: on systems other than Linux, whose swap grows as needed.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {key: int(rest.split()[0]) for key, _, rest in (one.partition(":") for one in lines)}
        swap = 1024 * kib["SwapTotal"]
        return min([1024 * kib["MemTotal"] + swap, *_of_cgroups(root, swap)])
    except (OSError, ValueError, LookupError):
        return None


def _of_cgroups(root: Path, swap: int) -> Iterator[int]:
    """Yield the limit of each cgroup around this process, of cgroups v1 and v2."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _around(root / "sys/fs/cgroup", path):
                if (memory := _number(folder / "memory.max")) is not None:
                    more = _number(folder / "memory.swap.max")
                    yield memory + (swap if more is None else min(more, swap))
        elif "memory" in controllers.split(","):
            for folder in _around(root / "sys/fs/cgroup/memory", path):
                if (memory := _number(folder / "memory.limit_in_bytes")) is not None:
                    yield memory + swap
                if (both := _number(folder / "memory.memsw.limit_in_bytes")) is not None:
                    yield both


def _around(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a cgroup and those of its parents. In a container the path may be one of
    the host, which does not exist there, and the mount is the container's own group."""
    folder = mount / path.lstrip("/")
    yield from (one for one in (folder, *folder.parents) if one.is_relative_to(mount))


def _number(path: Path) -> int | None:
    """Return the limit in a file; None for `max`, or if there is no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
