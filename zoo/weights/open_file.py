"""A file of weights, open for reading.

It is read through a descriptor that is opened once, so that no other version of the file can come
in between, and by `pread`, so that a file which is shortened meanwhile gives an error and no
signal. Several threads may read at once.
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

from zoo.errors import Place, Problem, WeightsError

STEP = 1 << 20
"""Bytes that are read at a time: few enough to be in a core's cache while they are hashed."""


@dataclass(frozen=True)
class OpenFile:
    """One open file; `state` is what changes when it is written to."""

    file: BinaryIO
    place: Place
    state: tuple[int, int]

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
            # Not blocking, should the file have become a pipe meanwhile.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            file = stack.enter_context(os.fdopen(descriptor, "rb", buffering=0))
            return cls(file, place, _state(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            # A ValueError is of a path that holds a NUL.
            raise _no_such(path, place) from None
        except OSError as error:
            raise cannot_read(error, place) from None

    @property
    def size(self) -> int:
        return self.state[0]

    @property
    def read_only(self) -> bool:
        """Whether nobody has the permission to write to it."""
        return not os.fstat(self.file.fileno()).st_mode & 0o222

    @cached_property
    def mapping(self) -> mmap:
        """A private mapping of the file. Raises as `read`."""
        try:
            return mmap(self.file.fileno(), self.size, access=ACCESS_COPY)
        except ValueError:  # longer than the file is by now
            raise self._changed("it has become shorter while it was read") from None
        except OSError as error:
            raise cannot_read(error, self.place) from None

    def blake3(self, piece: slice) -> str:
        """The hexadecimal BLAKE3 of some bytes, read in the mapping without Python's lock. Raises
        as `read`."""
        return blake3(memoryview(self.mapping)[piece]).hexdigest()

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on.

        Raises:
            WeightsError: the file cannot be read, or is shorter than it was.
        """
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self.file.fileno(), [buffer[done:]], offset + done)
            except OSError as error:
                raise cannot_read(error, self.place) from None
            if count == 0:
                raise self._changed("it has become shorter while it was read")
            done += count

    def steps(self, offset: int, length: int) -> Iterator[memoryview]:
        """`length` bytes from `offset` on, step by step, all in one buffer. Raises as `read`."""
        buffer = memoryview(bytearray(min(STEP, length)))
        for start in range(0, length, STEP):
            part = buffer[: min(STEP, length - start)]
            self.read(part, offset + start)
            yield part

    def head(self, length: int) -> bytes:
        """The first bytes. Raises as `read`."""
        buffer = bytearray(length)
        self.read(memoryview(buffer), 0)
        return bytes(buffer)

    def check_unchanged(self) -> None:
        """Raises `WeightsError` if the file was written to since it was opened."""
        if _state(self.file) != self.state:
            raise self._changed("it was written to while it was read")

    def _changed(self, message: str) -> WeightsError:
        return WeightsError(Problem(message, self.place, "read it again when it is whole"))


def _no_such(path: Path, place: Place) -> WeightsError:
    from zoo.inside import near  # here: only a mistake needs it

    return WeightsError(Problem("there is no such weights file", place, near(path)))


def cannot_read(error: OSError, place: Place) -> WeightsError:
    """The error for a file that the system does not let be read."""
    return WeightsError(Problem(f"cannot be read: {error.strerror}", place))


def _state(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a regular file")
    return found.st_size, found.st_mtime_ns
