"""Reading the tensors of a checkpoint from any thread, quantized ones as floats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

from zoo.families.adapters.tensor import Adapted
from zoo.families.checkpoint import Stored
from zoo.families.quantized.tensor import Quantized
from zoo.weights.open_file import OpenFile


class Reader:
    """Reads single tensors of a checkpoint, from any thread. Files are opened at first use."""

    def __init__(self) -> None:
        self._files: dict[Path, OpenFile] = {}
        self._stack = ExitStack()
        self._opening = Lock()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, tensor: Stored | Quantized | Adapted, buffer: memoryview) -> None:
        """Read a tensor into `buffer`, which has its size.

        Raises:
            WeightsError: a file cannot be read, or is shorter than it was.
        """
        if isinstance(tensor, Stored):
            self._file(tensor).read(buffer, tensor.start)
            return
        done = 0
        for part in tensor.steps(self.read):
            buffer[done : done + len(part)] = part
            done += len(part)

    def steps(self, tensor: Stored | Quantized | Adapted) -> Iterator[memoryview]:
        """Yield the bytes of a tensor in chunks, all in one buffer. Raises as `read`."""
        if isinstance(tensor, Stored):
            return self._file(tensor).steps(tensor.start, tensor.n_bytes)
        return tensor.steps(self.read)

    def check_unchanged(self) -> None:
        """Raise `WeightsError` if a file was written to since it was first read."""
        for file in self._files.values():
            file.check_unchanged()

    def _file(self, tensor: Stored) -> OpenFile:
        with self._opening:
            if tensor.path not in self._files:
                self._files[tensor.path] = OpenFile.open(tensor.path, self._stack)
            return self._files[tensor.path]
