"""Positions that are added to the embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import nn

from zoo.position import PositionScheme

_SERIAL = 1 << 15  # up to this number of elements, torch computes on the calling thread


class ComputedPositions(PositionScheme):
    """A fixed table, computed in float64 and rounded once, to the dtype of the model."""

    table: torch.Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(length, width), persistent=False)

    def computed(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, (n,), of the table, in float64: (n, width)."""
        raise NotImplementedError

    def reset_buffers(self, *, device: torch.device | str) -> None:
        """Compute the table on `device`, in its dtype."""
        length, width = self.table.shape
        table = torch.empty(length, width, dtype=self.table.dtype, device=device)
        positions = torch.arange(length, device="cpu")
        # Some rows at a time: the angles of all would take several times the memory of the table,
        # and threads, which on a busy machine wait longer for each other than these rows take.
        n_rows = max(1, _SERIAL // width)
        for rows, some in zip(table.split(n_rows), positions.split(n_rows), strict=True):
            rows.copy_(self.computed(some))
        self.table = table

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Apply `fn` as every module does; then compute the table again after a cast or `to_empty`.
        The table is not saved: without this, a model that was cast and saved would differ from the
        one that is loaded, and no `load_state_dict` would give a table without values its values.
        """
        before = self.table
        super()._apply(fn, recurse)
        changed = self.table.dtype != before.dtype or before.is_meta
        if changed and not self.table.is_meta:
            self.reset_buffers(device=self.table.device)
        return self


class SinusoidalPositions(ComputedPositions):
    """Sines and cosines (Vaswani et al. 2017, section 3.5)."""

    def __init__(
        self,
        *,
        width: int,
        max_length: int,
        base: float,
        interleaved: bool,
        half_minus_one: bool,
        offset: int,
        zero_padding: bool,
    ) -> None:
        super().__init__(offset + max_length, width)
        self.max_length, self.offset = max_length, offset
        self.base, self.interleaved, self.half_minus_one = base, interleaved, half_minus_one
        self.zero_padding = zero_padding

    def extra_repr(self) -> str:
        """The number of positions and the width, as `print(model)` shows them."""
        return f"{self.max_length}, {self.table.shape[1]}"

    def computed(self, rows: torch.Tensor) -> torch.Tensor:
        """The sinusoids at these positions."""
        return sinusoids(
            rows,
            self.table.shape[1],
            base=self.base,
            interleaved=self.interleaved,
            half_minus_one=self.half_minus_one,
        )

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width) plus the table's rows at positions (..., length)."""
        rows = _rows(self.table, positions, self.offset, self.max_length, x.shape[-2])
        if self.zero_padding:
            rows = rows.masked_fill((positions < 0)[..., None], 0.0)
        return x + rows


class GridSinusoids(ComputedPositions):
    """Sines and cosines of the column and of the row of each patch of an image (MAE: He et al.
    2021), after `n_before` rows of zeros for what comes before the patches."""

    def __init__(self, *, width: int, n_before: int, grid: tuple[int, int], base: float) -> None:
        rows, columns = grid
        super().__init__(n_before + rows * columns, width)
        self.n_before, self.grid, self.base = n_before, grid, base

    def extra_repr(self) -> str:
        """The columns, the rows and the width, as `print(model)` shows them."""
        rows, columns = self.grid
        return f"{columns} x {rows}, {self.table.shape[1]}"

    def computed(self, rows: torch.Tensor) -> torch.Tensor:
        """The zeros of what comes before the patches, and the sinusoids of these."""
        patches, columns, half = rows - self.n_before, self.grid[1], self.table.shape[1] // 2
        parts = [
            sinusoids(at, half, base=self.base, interleaved=False, half_minus_one=False)
            for at in (patches % columns, patches // columns)
        ]
        return torch.cat(parts, 1).masked_fill((patches < 0)[:, None], 0.0)

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width) plus the table's rows at positions (..., length)."""
        return x + _rows(self.table, positions, 0, len(self.table), x.shape[-2])


def sinusoids(
    positions: torch.Tensor, width: int, *, base: float, interleaved: bool, half_minus_one: bool
) -> torch.Tensor:
    """The table of Vaswani et al. (2017, section 3.5) at positions p (n,): (n, width) in float64,
    columns 2k and 2k + 1 of which are sin and cos of p / base**(2k / width) if `interleaved`;
    otherwise all sines come first. For an odd width the last cosine is left out; with
    `half_minus_one`, tensor2tensor's form, the last column is 0.
    """
    n_angles = width // 2 if half_minus_one else (width + 1) // 2
    k = torch.arange(n_angles, dtype=torch.float64, device=positions.device)
    exponent = k / (n_angles - 1) if half_minus_one else 2 * k / width
    angles = positions.double()[:, None] * torch.exp(-math.log(base) * exponent)
    sine, cosine = angles.sin(), angles.cos()
    if interleaved:
        table = torch.stack([sine, cosine], -1).flatten(1)[:, :width]
    else:
        table = torch.cat([sine, cosine], 1)[:, :width]
    return nn.functional.pad(table, (0, width - table.shape[1]))


class LearnedPositions(PositionScheme):
    """A learned table, `weight` (offset + max_length, width) (Gehring et al. 2017)."""

    def __init__(self, *, width: int, max_length: int, offset: int) -> None:
        super().__init__()
        self.max_length, self.offset = max_length, offset
        self.weight = nn.Parameter(torch.empty(offset + max_length, width))

    def extra_repr(self) -> str:
        """As for `SinusoidalPositions`."""
        return f"{self.max_length}, {self.weight.shape[1]}"

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width) plus the table's rows at positions (..., length)."""
        return x + _rows(self.weight, positions, self.offset, self.max_length, x.shape[-2])


class LearnedPatches(LearnedPositions):
    """A learned table of the patches of an image, whose last row is that of the class token, which
    comes first."""

    def embed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (..., length, width) plus the rows of the class token and of the patches that are at
        positions (..., length)."""
        return super().embed(x, (positions - 1) % self.max_length)


def _rows(
    table: torch.Tensor, positions: torch.Tensor, offset: int, max_length: int, length: int
) -> torch.Tensor:
    """The rows at positions (..., length). Padding, at -1, has the row before that of position 0,
        if there is one.

    Raises:
        ValueError: the sequence is too long for the table, by itself or after earlier tokens.
    """
    if length > max_length:
        raise ValueError(
            f"a sequence of {length} tokens is longer than the model's {max_length} positions "
            "(`max_length` in its spec)"
        )
    try:
        return table[(positions + offset).clamp(min=0)]
    except IndexError:
        raise ValueError(
            f"a token at position {int(positions.max())}, counted from 0, is beyond the model's "
            f"{max_length} positions (`max_length` in its spec)"
        ) from None
