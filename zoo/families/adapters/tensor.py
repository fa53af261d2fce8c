"""Tensors of a checkpoint that an adapter changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.tensor import CHUNK, Quantized, Read, read_stored
from zoo.weights.dtypes import TORCH_DTYPES, beyond_range, n_beyond
from zoo.weights.file import ITEM_BYTES
from zoo.weights.held_tensors import bytes_of


@dataclass(frozen=True, slots=True)
class Update:
    """`scale` B A, (rows of B, columns of A), which is added to a matrix; if `transposed`, to one
    that is stored as (in, out)."""

    a: Stored
    b: Stored
    scale: float
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        rows, columns = self.b.shape[0], self.a.shape[1]
        return (columns, rows) if self.transposed else (rows, columns)

    def factors(self, read: Read) -> tuple[torch.Tensor, torch.Tensor]:
        """Two matrices whose product is the update, in float64, so that the result is the same on
        every machine but for ties of the last rounding."""
        a, b = read_stored(self.a, read).double(), read_stored(self.b, read).double()
        return (a.t(), b.t() * self.scale) if self.transposed else (b, a * self.scale)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A tensor with an update, or with values from an adapter.

    Args:
        name: its name in the checkpoint.
        dtype: its dtype, as safetensors names it, to which the sum is rounded.
        values: what is updated: the tensor of the checkpoint, or the adapter's in its place.
        update: what is added, if something is.
    """

    name: str
    dtype: str
    values: Stored | Quantized
    update: Update | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.values.shape

    @property
    def path(self) -> Path:
        """The file of the values."""
        return self.values.path

    @property
    def n_bytes(self) -> int:
        """The number of its bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def steps(self, read: Read) -> Iterator[memoryview]:
        """Yield its bytes in chunks. Raises what `read` raises, and at the end WeightsError if
        finite sums are infinite in its dtype."""
        dtype, done, n_infinite = TORCH_DTYPES[self.dtype], 0, 0
        factors = None if self.update is None else self.update.factors(read)
        for part in self._values(read):
            if factors is not None:
                part = part.double() + _product(*factors, done, len(part))
            done += len(part)
            rounded = part.to(dtype)
            n_infinite += n_beyond(part, rounded)
            yield bytes_of(rounded)
        if n_infinite:
            raise WeightsError(beyond_range(n_infinite, self.name, dtype, Place(str(self.path))))

    def _values(self, read: Read) -> Iterator[torch.Tensor]:
        """The values in their order, in chunks."""
        dtype = TORCH_DTYPES[self.values.dtype]
        if isinstance(self.values, Quantized):
            for part in self.values.steps(read):
                yield torch.frombuffer(part, dtype=dtype)
            return
        size = CHUNK * dtype.itemsize
        for first in range(0, self.values.n_bytes, size):
            n_bytes = min(size, self.values.n_bytes - first)
            start, shape = self.values.start + first, (n_bytes // dtype.itemsize,)
            stored = replace(self.values, start=start, n_bytes=n_bytes, shape=shape)
            yield read_stored(stored, read)


def _product(left: torch.Tensor, right: torch.Tensor, first: int, n: int) -> torch.Tensor:
    """The n elements of left @ right from the element `first`, in C order."""
    columns = right.shape[1]
    row, skipped = divmod(first, columns)
    rows = left[row : -(-(first + n) // columns)]
    return (rows @ right).reshape(-1)[skipped : skipped + n]
