"""Tensors to a file, digested and written in the background while the next one is made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO

import torch

from zoo.saving import bytes_of


class BackgroundWriter:
    """Writes tensors into a file, each at its place, and digests them.

    One tensor is under way at a time, and the caller makes the next meanwhile: no more than these
    are in memory. The file is the writer's until the block ends.

    Args:
        file: where to.
        starts: the place of each tensor, in bytes from the start of the file.
        on_bytes: called with the number of bytes written since the last call.
    """

    def __init__(
        self,
        file: BinaryIO,
        starts: Mapping[str, int],
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self.digests: dict[str, str] = {}
        self._file = file
        self._starts = starts
        self._on_bytes = on_bytes
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._under_way: list[Future[None]] = []

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            self._pool.shutdown()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor once the one before it is written. Raises the `OSError` of either."""
        data = bytes_of(tensor.contiguous())
        self._wait()
        self._under_way = [
            self._pool.submit(self._digest, name, data),
            self._pool.submit(self._write, self._starts[name], data),
        ]
        if self._on_bytes is not None:
            self._on_bytes(len(data))

    def _wait(self) -> None:
        for job in self._under_way:
            job.result()

    def _digest(self, name: str, data: memoryview) -> None:
        self.digests[name] = hashlib.sha256(data).hexdigest()

    def _write(self, start: int, data: memoryview) -> None:
        self._file.seek(start)
        self._file.write(data)
