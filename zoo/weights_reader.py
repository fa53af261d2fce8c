"""Saved weights, open for reading: one file or shards, their header, and the bytes of each tensor.

Everything is read through descriptors that are opened once, so that no other version of a file can
come in between, and read by `pread`, so that a file which is shortened meanwhile gives an error and
no signal. Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import BinaryIO

from zoo.errors import Place, Problem, WeightsError
from zoo.shards import parse_index
from zoo.weights_file import MAX_JSON_BYTES, Header, not_whole, parse_file, weights_path

STEP = 1 << 22
"""Bytes that are read at a time: what was read is hashed while it is in a cache."""


@dataclass(frozen=True)
class _File:
    """One open file; `state` is what changes when it is written to."""

    file: BinaryIO
    place: Place
    state: tuple[int, int]

    @classmethod
    def open(cls, path: Path, stack: ExitStack) -> _File:
        if not path.is_file():
            raise WeightsError(Problem("there is no such weights file", Place(str(path))))
        # Not blocking, should the file have become a pipe meanwhile.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        file = stack.enter_context(os.fdopen(descriptor, "rb", buffering=0))
        return cls(file, Place(str(path)), _state(file))

    @property
    def size(self) -> int:
        return self.state[0]

    @property
    def read_only(self) -> bool:
        return not os.fstat(self.file.fileno()).st_mode & 0o222

    @cached_property
    def mapping(self) -> mmap:
        try:
            return mmap(self.file.fileno(), self.size, access=ACCESS_COPY)
        except ValueError:  # longer than the file is by now
            raise self.changed("it has become shorter while it was read") from None
        except OSError as error:
            raise cannot_read(error, self.place) from None

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self.file.fileno(), [buffer[done:]], offset + done)
            except OSError as error:
                raise cannot_read(error, self.place) from None
            if count == 0:
                raise self.changed("it has become shorter while it was read")
            done += count

    def head(self, length: int) -> bytes:
        buffer = bytearray(length)
        self.read(memoryview(buffer), 0)
        return bytes(buffer)

    def check_unchanged(self) -> None:
        if _state(self.file) != self.state:
            raise self.changed("it was written to while it was read")

    def changed(self, message: str) -> WeightsError:
        return WeightsError(Problem(message, self.place, "load it again when it is whole"))


def _state(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a regular file")
    return found.st_size, found.st_mtime_ns


def cannot_read(error: OSError, place: Place) -> WeightsError:
    """The error for a file that the system does not let be read."""
    return WeightsError(Problem(f"cannot be read: {error.strerror}", place))


@dataclass(frozen=True)
class Weights:
    """Open weights. `spans` holds for each tensor its file and the offset of its first byte."""

    path: Path
    header: Header
    files: tuple[_File, ...]
    spans: Mapping[str, tuple[_File, int]]

    @property
    def paths(self) -> list[Path]:
        """The files, of shards the index first."""
        return [Path(file.place.file) for file in self.files]

    @property
    def read_only(self) -> bool:
        """Whether nobody has the permission to write to the files."""
        return all(file.read_only for file in self.files)

    def read(self, name: str, buffer: memoryview, *, hashed: bool) -> str | None:
        """Read a tensor into `buffer`, which has its size; returns its SHA-256 if `hashed`.

        Raises:
            WeightsError: the file cannot be read, or is shorter than it was.
        """
        file, offset = self.spans[name]
        sha256 = hashlib.sha256() if hashed else None
        for start in range(0, len(buffer), STEP):
            part = buffer[start : start + STEP]
            file.read(part, offset + start)
            if sha256 is not None:
                sha256.update(part)
        return sha256.hexdigest() if sha256 is not None else None

    def read_part(self, name: str, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes of a tensor from its byte `offset` on. Raises as `read`."""
        file, start = self.spans[name]
        file.read(buffer, start + offset)

    def steps(self, name: str) -> Iterator[memoryview]:
        """The bytes of a tensor, a step at a time, all in one buffer. Raises as `read`."""
        file, offset = self.spans[name]
        left = self.header.records[name].n_bytes
        buffer = memoryview(bytearray(min(STEP, left)))
        while left:
            part = buffer[: min(STEP, left)]
            file.read(part, offset)
            yield part
            offset, left = offset + len(part), left - len(part)

    def sha256(self, name: str) -> str:
        """The hexadecimal SHA-256 of a tensor's bytes. Raises as `read`."""
        sha256 = hashlib.sha256()
        for part in self.steps(name):
            sha256.update(part)
        return sha256.hexdigest()

    def mapped(self, name: str) -> tuple[mmap, int]:
        """A private mapping of the file that holds a tensor, and the offset of its first byte."""
        file, offset = self.spans[name]
        return file.mapping, offset

    def check_unchanged(self) -> None:
        """Raises `WeightsError` if a file was written to since it was opened."""
        for file in self.files:
            file.check_unchanged()


@contextmanager
def open_weights(path: Path) -> Generator[Weights]:
    """Open a weights file, an index of shards, or a folder that holds one of the two.

    Raises:
        WeightsError: a file is missing, damaged, cut off, or was not written by the zoo.
    """
    path = weights_path(path)
    with ExitStack() as stack:
        try:
            weights = _open(path, stack)
        except OSError as error:
            raise cannot_read(error, Place(str(path))) from None
        yield weights


def read_header(path: Path) -> Header:
    """What saved weights say of themselves. Raises as `open_weights`."""
    with open_weights(path) as weights:
        return weights.header


def _open(path: Path, stack: ExitStack) -> Weights:
    first = _File.open(path, stack)
    if path.suffix != ".json":
        raw = _head_of(first)
        header = parse_file(raw, first.place)
        spans = _spans(first, raw, header, header.names_in_file())
        return Weights(path, header, (first,), spans)
    if first.size > MAX_JSON_BYTES:
        raise not_whole(f"it is {first.size:,} bytes long", first.place)
    header, shards = parse_index(first.head(first.size), first.place)
    files = [first]
    spans = {}
    for name, names in shards.items():
        file = _File.open(path.parent / name, stack)
        raw = header.shard_bytes(names)
        if file.size < len(raw) or file.head(len(raw)) != raw:
            raise not_whole(f"it is not the shard that {path.name} tells of", file.place)
        spans |= _spans(file, raw, header, names)
        files.append(file)
    return Weights(path, header, tuple(files), spans)


def _head_of(file: _File) -> bytes:
    """What stands in a safetensors file before its tensors."""
    if file.size < 8:
        raise not_whole(f"it is {file.size} bytes long", file.place)
    length = int.from_bytes(file.head(8), "little")
    if length > min(MAX_JSON_BYTES, file.size - 8):
        raise not_whole(f"its header would be {length:,} bytes long", file.place)
    return file.head(8 + length)


def _spans(
    file: _File, raw: bytes, header: Header, names: Sequence[str]
) -> dict[str, tuple[_File, int]]:
    sizes = (header.records[name].n_bytes for name in names)
    *starts, end = accumulate(sizes, initial=len(raw))
    if file.size != end:
        message = f"{file.size:,} bytes long, while its header tells of {end:,}"
        raise not_whole(message, file.place)
    return {name: (file, start) for name, start in zip(names, starts, strict=True)}
