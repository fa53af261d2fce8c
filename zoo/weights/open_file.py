"""A weights file, open for reading.

The file is opened once, so that all reads see the same version of it. It is read by `pread`, so
that a file which is truncated meanwhile causes an error and not a signal. Several threads may read
at once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from zoo.errors import Place, WeightsError

STEP = 1 << 20
"""The number of bytes read at a time: few enough to stay in a core's cache for hashing."""
AT_ONCE = 1 << 30
"""The most bytes of one call of the system. Of 2 GiB, macOS says that the argument is invalid."""


@dataclass(frozen=True)
class OpenFile:
    """One open file. `state` is its size and modification time, which change on writes. `identity`
    is the same on each machine for one file that they share, and another for each copy of it."""

    file: BinaryIO
    place: Place
    state: tuple[int, int]
    identity: tuple[int, ...]

    @classmethod
    def open(cls, path: Path, stack: ExitStack) -> OpenFile:
        """Open a file until the stack is closed.

        Raises:
            WeightsError: there is no such file, or it cannot be opened.
        """
        place = Place(str(path))
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise _no_such(path, place)
            # Non-blocking, in case the file has become a pipe meanwhile.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            file = stack.enter_context(os.fdopen(descriptor, "rb", buffering=0))
            return cls(file, place, _state(file), _identity(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # A path that contains a NUL raises ValueError.
            raise _no_such(path, place) from None
        except OSError as error:
            raise cannot_read(error, place) from None

    @property
    def size(self) -> int:
        return self.state[0]

    @property
    def read_only(self) -> bool:
        """Whether no user has permission to write to the file."""
        return not os.fstat(self.file.fileno()).st_mode & 0o222

    @cached_property
    def mapping(self) -> mmap:
        """A private memory mapping of the file. Raises as `read`."""
        try:
            return mmap(self.file.fileno(), self.size, access=ACCESS_COPY)
        except ValueError:  # the size is larger than the file now is
            raise self._changed("it has become shorter while it was read") from None
        except OSError as error:
            raise cannot_read(error, self.place) from None

    def blake3(self, piece: slice) -> str:
        """The hexadecimal BLAKE3 of a slice of the mapped file, computed without holding the GIL.
        Raises as `read`."""
        return blake3(memoryview(self.mapping)[piece]).hexdigest()

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on.

        Raises:
            WeightsError: the file cannot be read, or is shorter than it was.
        """
        done = 0
        while done < len(buffer):
            try:
                part = buffer[done : done + AT_ONCE]
                count = os.preadv(self.file.fileno(), [part], offset + done)
            except OSError as error:
                raise cannot_read(error, self.place) from None
            if count == 0:
                raise self._changed("it has become shorter while it was read")
            done += count

    def steps(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield `length` bytes from `offset` on in steps of `STEP`, which share one buffer. Raises
        as `read`."""
        buffer = memoryview(bytearray(min(STEP, length)))
        for start in range(0, length, STEP):
            part = buffer[: min(STEP, length - start)]
            self.read(part, offset + start)
            yield part

    def head(self, length: int) -> bytes:
        """The first `length` bytes. Raises as `read`."""
        buffer = bytearray(length)
        self.read(memoryview(buffer), 0)
        return bytes(buffer)

    def check_unchanged(self) -> None:
        """Raise `WeightsError` if the file was written to since it was opened."""
        if _state(self.file) != self.state:
            raise self._changed("it was written to while it was read")

    def _changed(self, message: str) -> WeightsError:
        return WeightsError(message, self.place, "read it again when it is whole")


def _no_such(path: Path, place: Place) -> WeightsError:
    from zoo.files.hints import near  # here: only a mistake needs it

    return WeightsError("there is no such weights file", place, near(path))


def cannot_read(error: OSError, place: Place) -> WeightsError:
    """The error for a file that cannot be read because of an `OSError`."""
    return WeightsError(f"cannot be read: {error.strerror}", place)


def _state(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a regular file")
    return found.st_size, found.st_mtime_ns


def _identity(file: BinaryIO) -> tuple[int, ...]:
    # Not the device, whose number differs between machines that share a disk. The time of the last
    # change of a file's state is set by its system alone, in nanoseconds: no copy has the same.
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
