"""Memory for weights: in huge pages, where Linux has them, and the same again and again.

A processor reads weights faster from pages of 2 MiB than of 4 KiB: it looks up fewer of them, and
reads ahead only within a page. Elsewhere than on Linux, all of this is torch's own memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from functools import cache
from math import prod
from threading import Lock, local
from typing import Any

import torch

PAGE = 2**21
"""The bytes of a huge page, on x86 and on ARM with pages of 4 KiB beside them."""

CHUNK = 64 * 2**20
"""The bytes that an arena takes from the system at once. A tensor of more than half of it has
memory of its own."""

SMALL = PAGE // 8
"""The bytes below which a tensor has torch's own memory. A bias in a chunk would keep all of it
when the matrices beside it are gone, as after `zoo.quantize_weights`."""

ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes, as in torch's own memory."""

MADV_COLLAPSE = 25
"""The advice that makes huge pages of memory in use, since Linux 6.1."""


class Arena:
    """Memory for the tensors of one model, side by side, so that a huge page can hold parts of
    several. By itself, a matrix of a few MiB has one or two, and small pages around them. A chunk
    is freed with its last tensor; a storage in it cannot be resized. Threads may share an arena.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate a tensor on the CPU without setting its values.

        Raises:
            MemoryError: the system has not so much memory; a RuntimeError where it is not Linux.
        """
        count = prod(shape)
        n_bytes = count * dtype.itemsize
        if n_bytes < SMALL or sys.platform != "linux":
            return torch.empty(shape, dtype=dtype, device="cpu")
        try:
            chunk, start = self._place(n_bytes)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"there is no memory for {n_bytes:,} bytes") from error
        return torch.frombuffer(chunk, dtype=dtype, count=count, offset=start).view(shape)

    def _place(self, n_bytes: int) -> tuple[mmap.mmap, int]:
        """Return a chunk and where in it so many bytes are free."""
        if n_bytes > CHUNK // 2:
            return _mapping(n_bytes), 0
        with self._lock:
            start = -(-self._used // ALIGNMENT) * ALIGNMENT
            if self._chunk is None or start + n_bytes > CHUNK:
                self._chunk, start = _mapping(CHUNK), 0
            self._used = start + n_bytes
            return self._chunk, start


class Scratch(local):
    """Memory that is used again for the next tensor, by each thread for itself. Fresh memory takes
    as long as reading into it, and an allocator would keep what each thread has freed."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor on the CPU, without setting its values, in the memory of the one before.

        Raises:
            MemoryError, RuntimeError: as `Arena.empty`.
        """
        n_bytes = prod(shape) * dtype.itemsize
        if n_bytes > len(self._bytes):
            self._bytes = Arena().empty((n_bytes,), torch.uint8)
        return self._bytes[:n_bytes].view(dtype).view(shape)


def _mapping(n_bytes: int) -> mmap.mmap:
    """Return memory of at least so many bytes. Linux aligns whole huge pages to their size."""
    size = -(-n_bytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def collapse(address: int, n_bytes: int) -> None:
    """Copy memory that holds values into huge pages, where the kernel can. What is beside it in its
    first and last page moves too."""
    madvise = _madvise()
    if madvise is None:
        return
    for page in range(address // PAGE * PAGE, address + n_bytes, PAGE):
        madvise(page, PAGE, MADV_COLLAPSE)


@cache
def _madvise() -> Any:
    """Return the C library's function, or None where there is none of Linux."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function
