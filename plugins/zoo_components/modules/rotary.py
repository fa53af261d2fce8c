"""Rotary positions (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from zoo.position import PositionScheme, Rotation
from zoo_components.modules.constant import Constant
from zoo_components.modules.frequencies import Frequencies, StoredFrequencies


class Pairs(NamedTuple):
    """Which elements of a head are pairs, and how these are rotated.

    Args:
        width: the number of leading elements that are, which is even.
        interleaved: whether elements 2k and 2k + 1 are a pair, or k and k + width / 2.
        clockwise: the direction of the rotation.
        magnitude: the factor that multiplies the rotated elements.
    """

    width: int
    interleaved: bool = False
    clockwise: bool = False
    magnitude: float = 1.0


class RotaryPositions(PositionScheme):
    """Rotates the pairs of each query and key head: at position p, the k-th pair (a, b) becomes
    (a cos t - b sin t, b cos t + a sin t) with t = p * frequency_k. So the product of a query and a
    key depends on their distance, not on where they are.

    Args:
        pairs: what is rotated together.
        frequencies: the angle by which each pair is rotated from one position to the next.
    """

    def __init__(self, pairs: Pairs, frequencies: Frequencies | StoredFrequencies) -> None:
        super().__init__()
        self.width, self.interleaved, self.clockwise, self.magnitude = pairs
        self.frequencies = frequencies

    def extra_repr(self) -> str:
        """The width, the base and what scales it, as `print(model)` shows them; a list of factors,
        or frequencies that are a tensor, are left out."""
        scaled = vars(self.frequencies) if isinstance(self.frequencies, Frequencies) else {}
        told = {**scaled, "width": self.width}  # theirs may be that of a half
        told |= {"pairs": "interleaved"} if self.interleaved else {}
        plain = {name: value for name, value in told.items() if not isinstance(value, Constant)}
        return ", ".join(f"{name}={value}" for name, value in plain.items())

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation for positions (..., length). Angles are computed in float32, or float64 for
        a float64 model: in half precision, neighbouring positions would coincide."""
        return self._by(self.angles(positions, torch.promote_types(dtype, torch.float32)), dtype)

    def _by(self, angles: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation by angles (..., length, width / 2)."""
        cosine, sine = angles.cos(), -angles.sin() if self.clockwise else angles.sin()
        of_itself, of_other = (
            (self._elements(*factors) * self.magnitude).to(dtype)[..., None, :, :]
            for factors in ((cosine, cosine), (-sine, sine))
        )
        return lambda x: self._turn(x, of_itself, of_other)

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at positions (..., length), (..., length, width / 2)."""
        return positions.to(dtype)[..., None] * self.frequencies(positions, dtype)

    def table(self, n_positions: int) -> torch.Tensor:
        """The sines and then the cosines of the angles at the first positions, (n_positions, width)
        in float64: a table that some published checkpoints hold, to be compared with it."""
        positions = torch.arange(n_positions, device="cpu")
        angles = positions.double()[:, None] * self.frequencies(positions, torch.float64)
        return torch.cat([angles.sin(), angles.cos()], 1)

    def _elements(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Put what belongs to the first and to the second elements of all pairs, (..., width / 2),
        where those elements are, (..., width)."""
        if self.interleaved:
            return torch.stack([first, second], -1).flatten(-2)
        return torch.cat([first, second], -1)

    def _turn(
        self, x: torch.Tensor, of_itself: torch.Tensor, of_other: torch.Tensor
    ) -> torch.Tensor:
        """Rotate x (..., heads, length, head_dim): each element times its factor in `of_itself`,
        plus the other one of its pair times its factor in `of_other`; both (..., 1, length,
        width)."""
        whole = x.shape[-1] == self.width
        turned = x if whole else x[..., : self.width]
        # Not `addcmul`, which rounds once: what is rounded, and when, is a part of a model.
        turned = turned * of_itself + self._others(turned) * of_other
        return turned if whole else torch.cat([turned, x[..., self.width :]], -1)

    def _others(self, x: torch.Tensor) -> torch.Tensor:
        """The other one of the pair of each element of x (..., width)."""
        if self.interleaved:
            return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat([second, first], -1)


class AxesRotaryPositions(RotaryPositions):
    """Rotates each pair by one of the coordinates of a token."""

    def rotation_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation for coordinates (..., length, axes); angles are computed as in
        `rotation`."""
        exact = torch.promote_types(dtype, torch.float32)
        return self._by(self.angles_at(coordinates, exact), dtype)

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at positions (..., length), (..., length, width / 2)."""
        return self.angles_at(positions[..., None].expand(*positions.shape, self.axes), dtype)

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at coordinates (..., length, axes), (..., length, width / 2)."""
        raise NotImplementedError


class AxialRotaryPositions(AxesRotaryPositions):
    """Rotates the first half of the pairs by the row of a token, and the others by its column, with
    the same frequencies (Qwen2-VL: Wang et al. 2024, arXiv:2409.12191)."""

    axes = 2

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `AxesRotaryPositions.angles_at`."""
        frequencies = self.frequencies(coordinates[..., 0], dtype)
        return (coordinates.to(dtype)[..., None] * frequencies).flatten(-2)


class AlternatingAxialRotaryPositions(AxesRotaryPositions):
    """Rotates the first half of the pairs by the row of a token, and the others by its column, each
    with every second frequency (Pixtral: Agrawal et al. 2024, arXiv:2410.07073)."""

    axes = 2

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `AxesRotaryPositions.angles_at`."""
        each = self.frequencies(coordinates[..., 0], dtype).view(-1, self.axes).t()
        return (coordinates.to(dtype)[..., None] * each).flatten(-2)


class HalvesAxialRotaryPositions(AxialRotaryPositions):
    """Rotates the pairs in the first half of the elements by the column of a token, and those in
    the second half by its row, with the same frequencies (Gemma 4)."""

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `AxesRotaryPositions.angles_at`."""
        return super().angles_at(coordinates.flip(-1), dtype)

    def _elements(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        halves = zip(first.chunk(2, -1), second.chunk(2, -1), strict=True)
        return torch.cat(
            [super(HalvesAxialRotaryPositions, self)._elements(*one) for one in halves], -1
        )

    def _others(self, x: torch.Tensor) -> torch.Tensor:
        return super()._others(x.unflatten(-1, (2, -1))).flatten(-2)


class MultimodalRotaryPositions(AxesRotaryPositions):
    """Rotates pairs by the time, the row or the column of a token (M-RoPE; Qwen2-VL: Wang et al.
    2024, arXiv:2409.12191).

    Args:
        sections: the number of pairs that each of the three rotates, one after the other.
    """

    axes = 3

    def __init__(
        self, pairs: Pairs, frequencies: Frequencies, *, sections: tuple[int, int, int]
    ) -> None:
        super().__init__(pairs, frequencies)
        self.sections = sections

    def extra_repr(self) -> str:
        """As that of `RotaryPositions`, with the sections."""
        return f"{super().extra_repr()}, sections={self.sections}"

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `AxesRotaryPositions.angles_at`."""
        each = [
            one.expand(*one.shape[:-1], n_pairs)
            for one, n_pairs in zip(coordinates.split(1, -1), self.sections, strict=True)
        ]
        return torch.cat(each, -1).to(dtype) * self.frequencies(coordinates[..., 0], dtype)


class InterleavedMultimodalRotaryPositions(MultimodalRotaryPositions):
    """Rotates pairs in turn by the time, the row and the column of a token, and by the time where
    the row or the column has had all of its pairs (Qwen3-VL: Bai et al. 2025, arXiv:2511.21631)."""

    def angles_at(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `AxesRotaryPositions.angles_at`."""
        pairs = torch.arange(sum(self.sections), device=coordinates.device)
        axis = torch.zeros_like(pairs)
        for turn in (1, 2):
            axis += turn * ((pairs % 3 == turn) & (pairs < 3 * self.sections[turn]))
        turned = coordinates.index_select(-1, axis).to(dtype)
        return turned * self.frequencies(coordinates[..., 0], dtype)


class GridRotaryPositions(RotaryPositions):
    """Rotates the first half of the pairs by the row of a patch, and the others by its column, each
    from -1 to 1 (DINOv3: Simeoni et al. 2025, arXiv:2508.10104).

    Args:
        grid: the number of positions before the patches, which are not rotated, of rows and of
            columns.
    """

    def __init__(
        self, pairs: Pairs, frequencies: Frequencies, *, grid: tuple[int, int, int]
    ) -> None:
        super().__init__(pairs, frequencies)
        self.grid = grid

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at positions (..., length), (..., length, width / 2)."""
        n_before, rows, columns = self.grid
        places = self.places(positions, dtype)
        counts = places.new_tensor([rows, columns])
        coordinates = (2 * places + 1) / counts - 1
        turned = (positions >= n_before)[..., None, None] * coordinates[..., None]
        frequencies = 2 * math.pi * self.frequencies(positions, dtype)
        return (turned * frequencies).flatten(-2)

    def places(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The row and the column, from 0, of the patches at positions (..., length), (..., length,
        2); those of the first patch at positions before the patches."""
        n_before, _, columns = self.grid
        patch = (positions - n_before).clamp(min=0)
        return torch.stack([patch // columns, patch % columns], -1).to(dtype)


class CountedGridRotaryPositions(GridRotaryPositions):
    """Rotates the first half of the pairs by the column of a patch, and the others by its row, both
    counted from 1, so that what is before the patches is at 0 (Llama 4)."""

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at positions (..., length), (..., length, width / 2)."""
        counted = self.places(positions, dtype).flip(-1) + 1
        counted = counted * (positions >= self.grid[0])[..., None]
        return (counted[..., None] * self.frequencies(positions, dtype)).flatten(-2)


class ClassGridRotaryPositions(GridRotaryPositions):
    """Rotates the first half of the pairs by the row of a patch, and the others by its column, and
    those of the class token, which comes first, by the learned `class_angles` (An et al. 2024,
    arXiv:2407.17331)."""

    class_angles: nn.Parameter

    def add_class_angles(self) -> None:
        """Give the class token its learned angles."""
        self.class_angles = nn.Parameter(torch.empty(self.width // 2))

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The angles of all pairs at positions (..., length), (..., length, width / 2)."""
        turned = self.places(positions, dtype)[..., None] * self.frequencies(positions, dtype)
        of_class = (positions < self.grid[0])[..., None]
        return torch.where(of_class, self.class_angles.to(dtype), turned.flatten(-2))
