"""How much memory there is, for what would otherwise be killed by the kernel once it has it all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes that this process can have at most: the memory and the swap of the machine, or less
    where a cgroup of its own or around it says so. What others use of it is not taken off, since
    they may end, and be swapped out: more than this never works, and less may not work either.

    Args:
        root: of the file system with `proc` and `sys`.

    Returns:
        None where that is not known: on systems other than Linux, whose swap grows as it is needed.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {key: int(rest.split()[0]) for key, _, rest in (one.partition(":") for one in lines)}
        swap = 1024 * kib["SwapTotal"]
        return min([1024 * kib["MemTotal"] + swap, *_of_cgroups(root, swap)])
    except (OSError, ValueError, LookupError):
        return None


def _of_cgroups(root: Path, swap: int) -> Iterator[int]:
    """What each cgroup around this process allows, of both versions."""
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
    """The folder of a cgroup and of those around it. In a container the path may be that of the
    host, which is not there, and the mount the container's own group."""
    folder = mount / path.lstrip("/")
    yield from (one for one in (folder, *folder.parents) if one.is_relative_to(mount))


def _number(path: Path) -> int | None:
    """The limit in a file; None for `max`, and where there is no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
