"""A quantized tensor: small numbers, the scales of blocks, and the floats that these make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from zoo.errors import Place, WeightsError
from zoo.families.checkpoint import Stored
from zoo.families.quantized.packing import DTYPES, PACKING, Numbers, unpacked, words
from zoo.weights.dtypes import TORCH_DTYPES
from zoo.weights.file import ITEM_BYTES
from zoo.weights.held_tensors import bytes_of

CHUNK = 1 << 20
"""The number of floats that are made at a time."""

Read = Callable[[Stored, memoryview], None]
"""Reads a stored tensor into memory of its size."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor of floats, (..., rows, columns), each the scale of its block times a small number,
    from which the block's zero point is subtracted first, if there is one.

    Args:
        dtype: the dtype of the floats, as safetensors names it. They are computed in float32, and
            rounded once.
        shape: their shape; if `transposed`, (..., columns, rows).
        numbers: how the small numbers are stored.
        values: the small numbers.
        scales: (..., rows of blocks, columns of blocks), or one for all.
        block: the rows and columns of a block. The last block may be smaller.
        zeros: the zero points of the blocks, packed if the numbers are.
        transposed: whether the tensor of floats has rows and columns exchanged.
        groups: the row of blocks that each row belongs to, where these are not in order; if not
            `transposed`, the column of blocks that each column belongs to.
        zeros_above: what is added to each stored word of zero points, modulo 2^32.
        flat: whether blocks are of the elements in their order, whatever row they are in; a block
            then has one row.
        table: the small numbers by their codes, if codes are stored, in float32.
        times: a factor of all floats.
        above: a summand of all floats.
    """

    dtype: str
    shape: tuple[int, ...]
    numbers: Numbers
    values: Stored
    scales: Stored | Quantized
    block: tuple[int, int]
    zeros: Stored | None = None
    transposed: bool = False
    groups: Stored | None = None
    zeros_above: int = 0
    flat: bool = False
    table: Stored | None = None
    times: float = 1.0
    above: float = 0.0

    @property
    def path(self) -> Path:
        """The file of the small numbers."""
        return self.values.path

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the floats."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def plane(self) -> tuple[int, int]:
        """The rows and columns of small numbers in a matrix; if blocks are flat, the rows are whole
        blocks, where that is possible."""
        if self.flat:
            n, width = prod(self.shape), self.block[1]
            is_whole = n % width == width % PACKING[self.numbers].across == 0
            return (n // width, width) if is_whole else (1, n)
        rows, columns = self.shape[-2:]
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def n_matrices(self) -> int:
        """The number of matrices."""
        return 1 if self.flat else prod(self.shape[:-2])

    @property
    def items(self) -> tuple[int, int]:
        """The rows and columns of what is stored of a matrix."""
        (rows, columns), packing = self.plane, PACKING[self.numbers]
        return -(-rows // packing.down), -(-columns // packing.across)

    @property
    def blocks(self) -> tuple[int, int]:
        """The rows and columns of blocks."""
        rows, columns = self.plane
        return -(-rows // self.block[0]), -(-columns // self.block[1])

    def steps(self, read: Read) -> Iterator[memoryview]:
        """Yield the bytes of the floats in chunks.

        Raises:
            WeightsError: a row or column is of no block; or what `read` raises.
        """
        rows, columns = self.plane
        across = PACKING[self.numbers].across
        blocks = _Blocks.of(self, read)
        table = None if self.table is None else read_stored(self.table, read)
        for matrix in range(self.n_matrices):
            if not self.transposed:
                n_rows = max(1, CHUNK // max(1, columns))
                for first in range(0, rows, n_rows):
                    last = min(first + n_rows, rows)
                    part = self._stored(matrix, first, last, read)
                    found = unpacked(part, self.numbers, table)
                    at = slice(first, last), slice(columns)
                    yield self._bytes(blocks.applied(found[:, :columns], matrix, *at))
                continue
            stored = self._stored(matrix, 0, self.items[0], read)
            n_columns = max(1, CHUNK // max(1, rows) // across) * across
            for first in range(0, columns, n_columns):
                last = min(first + n_columns, columns)
                part = stored[:, first // across : -(-last // across)]
                found = unpacked(part, self.numbers, table)[:rows, : last - first]
                at = slice(rows), slice(first, last)
                yield self._bytes(blocks.applied(found, matrix, *at).t())

    def _stored(self, matrix: int, first: int, last: int, read: Read) -> torch.Tensor:
        """Read these rows of what is stored of a matrix."""
        height, width = self.items
        row_bytes = width * DTYPES[self.values.dtype].itemsize
        start = self.values.start + (matrix * height + first) * row_bytes
        n_bytes, shape = (last - first) * row_bytes, (last - first, width)
        return read_stored(replace(self.values, start=start, n_bytes=n_bytes, shape=shape), read)

    def _bytes(self, floats: torch.Tensor) -> memoryview:
        if self.times != 1.0:
            floats = floats * self.times
        if self.above != 0.0:
            floats = floats + self.above
        return bytes_of(floats.to(TORCH_DTYPES[self.dtype]).contiguous())


class _Blocks(NamedTuple):
    """The scales and zero points of all blocks, (matrices, rows of blocks, columns of blocks), the
    rows and columns of each, and the row of blocks of each row of numbers, or the column of blocks
    of each column, if they are not in order."""

    scales: torch.Tensor
    zeros: torch.Tensor | None
    block: tuple[int, int]
    row_groups: torch.Tensor | None
    column_groups: torch.Tensor | None

    @classmethod
    def of(cls, tensor: Quantized, read: Read) -> _Blocks:
        """Read them. Raises as `Quantized.steps`."""
        shape = (tensor.n_matrices, *tensor.blocks)
        zeros = (
            None if tensor.zeros is None else _zero_points(tensor, read_stored(tensor.zeros, read))
        )
        groups = None if tensor.groups is None else read_stored(tensor.groups, read).long()
        n_groups = shape[1] if tensor.transposed else shape[2]
        if groups is not None and not bool(((groups >= 0) & (groups < n_groups)).all()):
            message = "an input of quantized weights is of a group that has no scale"
            raise WeightsError(message, Place(str(tensor.path)))
        of_rows, of_columns = (groups, None) if tensor.transposed else (None, groups)
        scales = _scales(tensor.scales, read).view(shape)
        return cls(scales, zeros, tensor.block, of_rows, of_columns)

    def applied(
        self, numbers: torch.Tensor, matrix: int, rows: slice, columns: slice
    ) -> torch.Tensor:
        """scale * (number - zero point) for the numbers in these rows and columns of a matrix."""
        if self.zeros is not None:
            numbers = numbers - self._spread(self.zeros[matrix], rows, columns)
        return numbers * self._spread(self.scales[matrix], rows, columns)

    def _spread(self, by_block: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """From one number for each block, one for each element."""
        of_rows = _blocks_of(rows, self.block[0], self.row_groups)
        of_columns = _blocks_of(columns, self.block[1], self.column_groups)
        # Of the two, first the one that leaves fewer numbers for the other.
        if len(of_rows) * by_block.shape[1] < by_block.shape[0] * len(of_columns):
            return by_block.index_select(0, of_rows).index_select(1, of_columns)
        return by_block.index_select(1, of_columns).index_select(0, of_rows)


def _blocks_of(lines: slice, size: int, groups: torch.Tensor | None) -> torch.Tensor:
    """The blocks that rows or columns are in, so many in each unless `groups` says it."""
    return torch.arange(lines.start or 0, lines.stop) // size if groups is None else groups[lines]


def _zero_points(tensor: Quantized, stored: torch.Tensor) -> torch.Tensor:
    """The zero points of all blocks, (matrices, rows of blocks, columns of blocks)."""
    n_matrices, (down, across) = tensor.n_matrices, tensor.blocks
    match tensor.numbers:
        case "packed4" | "packed8":  # those of a column in one word
            columns = stored.view(n_matrices, -1, across).transpose(1, 2).flatten(0, 1)
            found = unpacked(columns, tensor.numbers)[:, :down]
            return found.view(n_matrices, across, down).transpose(1, 2)
        case "awq4":
            found = unpacked(stored.flatten(0, -2), "awq4")[:, :across]
        case "gptq4" | "gptq8":
            bits = 4 if tensor.numbers == "gptq4" else 8
            stored = stored.flatten(0, -2) + tensor.zeros_above
            found = words(stored, bits).flatten(-2).float()[:, :across]
        case _:
            found = stored.float()
    return found.view(n_matrices, down, across)


def read_stored(tensor: Stored, read: Read) -> torch.Tensor:
    """Read a stored tensor."""
    data = torch.empty(tensor.n_bytes, dtype=torch.uint8)
    read(tensor, bytes_of(data))
    return data.view(DTYPES[tensor.dtype]).view(tensor.shape)


def _scales(stored: Stored | Quantized, read: Read) -> torch.Tensor:
    """Scales in float32; bytes are powers of 2 with 127 added to the exponent."""
    if isinstance(stored, Quantized):
        return torch.frombuffer(bytearray().join(stored.steps(read)), dtype=torch.float32)
    scales = read_stored(stored, read)
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()
