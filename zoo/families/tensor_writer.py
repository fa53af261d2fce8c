"""Write tensors to a file from several threads, computing the digest of each on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from zoo.files.atomic import sync

_SYNC_BYTES = 1 << 26
"""Bytes after which a sync is started, so that the disk writes while further tensors are made."""


class TensorWriter:
    """Writes tensors into a file, each at its own offset.

    The file must not be used otherwise until the block ends. Then all is written, and most is on
    disk.

    Args:
        file: the file.
        starts: the offset of each tensor, in bytes from the start of the file.
        on_bytes: called with the number of bytes written since the last call, by one thread at a
            time.
    """

    def __init__(
        self,
        file: BinaryIO,
        starts: Mapping[str, int],
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self.digests: dict[str, str] = {}
        self._descriptor = file.fileno()
        self._path = Path(file.name)
        self._starts = starts
        self._on_bytes = on_bytes
        self._counting = Lock()
        self._not_synced = 0
        self._disk = ThreadPoolExecutor(max_workers=1)
        self._sync: Future[None] | None = None

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._disk.shutdown()
        if error is None and self._sync is not None:
            self._sync.result()

    def write(self, name: str, parts: Iterable[memoryview]) -> None:
        """Write the bytes of a tensor. Raises `OSError`, also if an earlier sync has failed."""
        offset, sha256 = self._starts[name], hashlib.sha256()
        for part in parts:
            sha256.update(part)
            self._write(part, offset)
            offset += len(part)
            self._count(len(part))
        self.digests[name] = sha256.hexdigest()

    def _write(self, part: memoryview, offset: int) -> None:
        while part:
            count = os.pwrite(self._descriptor, part, offset)
            part, offset = part[count:], offset + count

    def _count(self, n_bytes: int) -> None:
        with self._counting:
            if self._on_bytes is not None:
                self._on_bytes(n_bytes)
            self._not_synced += n_bytes
            if self._not_synced < _SYNC_BYTES or not (self._sync is None or self._sync.done()):
                return
            if self._sync is not None:
                self._sync.result()  # raises the error of a failed sync, once
            self._not_synced = 0
            self._sync = self._disk.submit(sync, self._path)
