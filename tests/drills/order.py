"""What a log of strace says of the order of writing: a name that lasts is given to what is on disk,
and is on disk itself before the next one is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from zoo.files.atomic import TEMPORARY

_PASSING = {"work", "partial", "trash"}
"""Folders of the store in which no name is a promise."""
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_QUOTED = re.compile(r'"([^"]*)"')
_DESCRIPTOR = re.compile(r"^\d+<([^>]*)>")


@dataclass
class Disk:
    """What the log tells: which files and folders have been changed since they were synced."""

    names: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])
    """For each path whether it waits to be written to the disk; two names of a file share it."""
    unsettled: list[str] = field(default_factory=list[str])
    """The lasting names that were given and are not known to be on disk."""
    given: int = 0

    def waits(self, path: str) -> list[bool]:
        return self.names.setdefault(path, [False])

    def change(self, path: str) -> None:
        self.waits(path)[0] = True

    def sync(self, path: str) -> None:
        self.waits(path)[0] = False
        self.unsettled = [name for name in self.unsettled if _folder(name) != path]

    def name(self, old: str, new: str) -> Iterator[str]:
        """Give `old` the name `new`; what is wrong with that."""
        inside = {path: state for path, state in self.names.items() if path.startswith(f"{old}/")}
        if _lasts(new):
            self.given += 1
            changed = [path for path in (old, *inside) if self.waits(path)[0]]
            yield from (f"{new} is given to {path}, which is not on disk" for path in changed)
            yield from (f"{new} is given before {one} is on disk" for one in self.unsettled)
            self.unsettled.append(new)
        for path, state in inside.items():
            self.names[new + path.removeprefix(old)] = state
        self.names[new] = self.waits(old)
        self.change(_folder(new))


def violations(log: str) -> tuple[int, list[str]]:
    """How many lasting names a log gives, and what is wrong with their order."""
    disk, found = Disk(), list[str]()
    for call, arguments, result in _calls(log):
        paths = _QUOTED.findall(arguments)
        descriptor = _DESCRIPTOR.match(arguments)
        if result < 0:
            continue
        if call in ("rename", "renameat", "renameat2", "link", "linkat"):
            found += disk.name(*paths)
            if call.startswith("rename"):
                del disk.names[paths[0]]
        elif call in ("mkdir", "mkdirat") or (call == "openat" and "O_CREAT" in arguments):
            disk.change(paths[0])
            disk.change(_folder(paths[0]))
        elif descriptor and call in ("write", "pwrite64", "ftruncate"):
            disk.change(descriptor[1])
        elif call in ("copy_file_range", "sendfile"):
            disk.change(re.findall(r"<([^>]*)>", arguments)[-1 if call[0] == "c" else 0])
        elif descriptor and call in ("fsync", "fdatasync"):
            disk.sync(descriptor[1])
    found += [f"{name} is never known to be on disk" for name in disk.unsettled]
    return disk.given, found


def _calls(log: str) -> Iterator[tuple[str, str, int]]:
    """Each call with its arguments and result, when it ended."""
    begun: dict[tuple[str, str], str] = {}
    for line in log.splitlines():
        if split := re.match(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>", line):
            begun[split[1], split[2]] = split[3]
        elif ended := re.match(r"(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)", line):
            yield ended[2], begun.pop((ended[1], ended[2]), "") + ended[3], int(ended[4])
        elif whole := _LINE.match(line):
            yield whole[2], whole[3], int(whole[4])


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _lasts(path: str) -> bool:
    parts = PurePosixPath(path).parts
    temporary = any(fnmatchcase(part, TEMPORARY) for part in parts)
    return not temporary and _PASSING.isdisjoint(parts)
