"""Reading of saved weights, one file or shards: their header, and the bytes of each tensor.

This module does not import torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from mmap import mmap
from pathlib import Path

from blake3 import blake3 as blake3_of

from zoo.errors import Place, WeightsError
from zoo.files.formats import HEAD
from zoo.files.pointer import START, check_is_whole
from zoo.machine.threads import on_all_cores
from zoo.weights.file import (
    MAX_JSON_BYTES,
    MENDING,
    Header,
    changed_tensors,
    no_safetensors,
    not_whole,
    parse_file,
    weights_path,
)
from zoo.weights.open_file import STEP, OpenFile
from zoo.weights.shards import parse_index
from zoo.wording import counted, quoted

PIECE = 1 << 27
"""The size in bytes of the pieces that are hashed when a whole file is checked: a core hashes a
hundred megabytes in about a thirtieth of a second."""


@dataclass(frozen=True)
class Weights:
    """Open weights. `spans` maps each tensor to its file and the offset of its first byte."""

    path: Path
    header: Header
    files: tuple[OpenFile, ...]
    spans: Mapping[str, tuple[OpenFile, int]]

    @property
    def paths(self) -> list[Path]:
        """The files; for shards, the index comes first."""
        return [Path(file.place.file) for file in self.files]

    @property
    def read_only(self) -> bool:
        """Whether no user has permission to write to the files."""
        return all(file.read_only for file in self.files)

    def read(self, name: str, buffer: memoryview, *, hashed: bool) -> str | None:
        """Read a tensor into `buffer`, which has its size, and return its SHA-256 if `hashed`.

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
        """Yield the bytes of a tensor in steps, which share one buffer. Raises as `read`."""
        file, offset = self.spans[name]
        return file.steps(offset, self.header.records[name].n_bytes)

    def sha256(self, name: str) -> str:
        """The hexadecimal SHA-256 of a tensor's bytes. Raises as `read`."""
        sha256 = hashlib.sha256()
        for part in self.steps(name):
            sha256.update(part)
        return sha256.hexdigest()

    def changed(self, names: Iterable[str], n_threads: int | None = None) -> list[str]:
        """The named tensors whose bytes do not have the SHA-256 of their record, computed by
        `n_threads` threads (by default, one per core). Raises as `read`."""
        records = self.header.records
        sizes = {name: records[name].n_bytes for name in names}
        found = on_all_cores(self.sha256, sizes, n_threads=n_threads)
        return [name for name, sha256 in found.items() if sha256 != records[name].sha256]

    def blake3(self) -> dict[str, list[str]]:
        """The hexadecimal BLAKE3 digests of the `PIECE`-sized pieces of each file, by file name,
        computed on all cores. Raises as `read`."""
        with self._hashing() as digests:
            return digests()

    @contextmanager
    def held_against(self, blake3: Mapping[str, Sequence[str]]) -> Generator[None]:
        """Hash the files while the block runs, and compare the digests with `blake3` at its end. If
        the block raises, hashing is given up.

        Raises:
            WeightsError: the digests differ from `blake3`, a former result of `Weights.blake3`.
        """
        with self._hashing() as digests:
            yield
            if digests() == blake3:
                return
        raise self._another()

    def check_beginnings(self, blake3: Mapping[str, Sequence[str]]) -> None:
        """Compare the first piece of each file, which its header is in, with `blake3`. The header
        has the digests of the tensors, so that these can then be checked one by one.

        Raises:
            WeightsError: a digest differs from `blake3`, a former result of `Weights.blake3`.
        """
        for path, file in zip(self.paths, self.files, strict=True):
            piece = bytearray(min(file.size, PIECE))
            file.read(memoryview(piece), 0)
            if blake3_of(piece).hexdigest() != next(iter(blake3.get(path.name, [])), None):
                raise self._another()

    def _another(self) -> WeightsError:
        """The error for files that are not those that were pulled."""
        if changed := self.changed(self.header.records):
            return changed_tensors(changed, Place(str(self.path)))
        message = "this is not the file that was pulled"
        return WeightsError(message, Place(str(self.path)), MENDING)

    @contextmanager
    def _hashing(self) -> Generator[Callable[[], dict[str, list[str]]]]:
        """Start hashing the files, and yield a function that waits for the digests and returns
        them. Pieces that have not been started when the block ends are cancelled."""
        # Uses Python threads: those of blake3 itself do not survive a fork, and a forked process
        # would wait for them forever.
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            hashing = {
                path.name: [
                    pool.submit(file.blake3, slice(start, start + PIECE))
                    for start in range(0, file.size, PIECE)
                ]
                for path, file in zip(self.paths, self.files, strict=True)
            }
            try:
                yield lambda: {
                    name: [one.result() for one in pieces] for name, pieces in hashing.items()
                }
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def mapped(self, name: str) -> tuple[mmap, int]:
        """A private mapping of the file that holds a tensor, and the offset of its first byte."""
        file, offset = self.spans[name]
        return file.mapping, offset

    def check_unchanged(self) -> None:
        """Raise `WeightsError` if a file was written to since it was opened."""
        for file in self.files:
            file.check_unchanged()


@contextmanager
def open_weights(path: Path) -> Generator[Weights]:
    """Open a weights file, an index of shards, or a folder that holds one of the two.

    Raises:
        WeightsError: a file is missing, damaged, cut off, or was not written by the zoo.
    """
    with ExitStack() as stack:
        yield _open(weights_path(path), stack)


def read_header(path: Path) -> Header:
    """Read the header of saved weights. Raises as `open_weights`."""
    with open_weights(path) as weights:
        return weights.header


def _open(path: Path, stack: ExitStack) -> Weights:
    first = OpenFile.open(path, stack)
    if path.suffix != ".json":
        raw = _head_of(first)
        header = parse_file(raw, first.place)
        spans = _spans(first, raw, header, header.names_in_file())
        return Weights(path, header, (first,), spans)
    if first.size > MAX_JSON_BYTES:
        raise not_whole(f"it is {first.size:,} bytes long", first.place)
    header, shards = parse_index(first.head(first.size), first.place)
    missing = [name for name in shards if not os.path.lexists(path.parent / name)]
    if missing:
        some = ", ".join([*map(quoted, missing[:3]), *(["..."] if len(missing) > 3 else [])])
        message = f"{len(missing)} of the {counted(len(shards), 'file')} that it names are missing"
        raise WeightsError(f"{message}: {some}", first.place, MENDING)
    files = [first]
    spans = {}
    for name, names in shards.items():
        file = OpenFile.open(path.parent / name, stack)
        raw = header.shard_bytes(names)
        if file.size < len(raw) or file.head(len(raw)) != raw:
            raise not_whole(f"it is not the shard that {path.name} tells of", file.place)
        spans |= _spans(file, raw, header, names)
        files.append(file)
    return Weights(path, header, tuple(files), spans)


def _head_of(file: OpenFile) -> bytes:
    """The bytes before the tensors in a safetensors file."""
    if file.size <= 8:
        raise not_whole(f"it is {file.size} bytes long", file.place)
    check_is_whole(file.head(min(START, file.size)), file.place)
    if file.head(HEAD)[8:] != b"{":
        raise no_safetensors(file.place, file.head(HEAD))
    length = int.from_bytes(file.head(8), "little")
    if length > min(MAX_JSON_BYTES, file.size - 8):
        raise not_whole(f"its header would be {length:,} bytes long", file.place)
    return file.head(8 + length)


def _spans(
    file: OpenFile, raw: bytes, header: Header, names: Sequence[str]
) -> dict[str, tuple[OpenFile, int]]:
    sizes = (header.records[name].n_bytes for name in names)
    *starts, end = accumulate(sizes, initial=len(raw))
    if file.size != end:
        message = f"{file.size:,} bytes long, while its header tells of {end:,}"
        raise not_whole(message, file.place)
    return {name: (file, start) for name, start in zip(names, starts, strict=True)}
