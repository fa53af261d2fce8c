"""Positions as distances between query and key, inside attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from zoo.position import PositionScheme
from zoo_components.modules.constant import Constant
from zoo_components.modules.norm import widen, without_autocast

EPS = 1e-6
"""Added to what the distances of FIRE are divided by, as in the code of its paper."""


class AlibiPositions(PositionScheme):
    """-slope * |query - key| for each head (Press et al. 2021)."""

    def __init__(self, *, n_heads: int, max_exponent: float, scale: float, rounded: bool) -> None:
        super().__init__()
        self.slopes = Constant(alibi_slopes(n_heads, max_exponent))
        self.scale, self.rounded = scale, rounded

    def bias(self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The bias (..., heads, query, key) for the positions of queries and keys, (...,
        length)."""
        exact = torch.promote_types(dtype, torch.float32)
        slopes = self.slopes.on(keys.device, exact)[:, None, None]
        if self.rounded:
            # The absolute positions of the keys, since positions relative to the query are rounded
            # differently. Without rounding, they differ by a constant for each query.
            bias = slopes.bfloat16() * keys[..., None, None, :].bfloat16()
            bias = bias.to(exact).expand(*bias.shape[:-2], queries.shape[-1], -1)
        else:
            distance = (queries[..., :, None] - keys[..., None, :]).abs()
            bias = -slopes * distance[..., None, :, :].to(exact)
        return (bias * self.scale).to(dtype)


def alibi_slopes(n_heads: int, max_exponent: float) -> list[float]:
    """The slope of each head: 2**(-max_exponent * i / n_heads) for the i-th, counted from 1, if
    n_heads is a power of 2. Otherwise the slopes are some of those for the next power: those of
    even i, then those of odd i, as many as there are heads (Press et al. 2021)."""
    n_slopes = 2 ** math.ceil(math.log2(n_heads))
    slopes = [2.0 ** (-max_exponent * i / n_slopes) for i in range(1, n_slopes + 1)]
    return slopes if n_slopes == n_heads else (slopes[1::2] + slopes[0::2])[:n_heads]


class T5BucketPositions(PositionScheme):
    """A learned bias for each bucket and head, `weight` (n_buckets, n_heads) (Raffel et al.
    2019)."""

    def __init__(
        self, *, n_heads: int, n_buckets: int, max_distance: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))

    def bias(self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The bias (..., heads, query, key) for the positions of queries and keys, (...,
        length)."""
        buckets = t5_buckets(
            keys[..., None, :] - queries[..., :, None],
            n_buckets=self.n_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return self.weight[buckets].movedim(-1, -3).to(dtype)


def t5_buckets(
    offset: torch.Tensor, *, n_buckets: int, max_distance: int, bidirectional: bool
) -> torch.Tensor:
    """The bucket of each offset, key position less query position (Raffel et al. 2019).

    The logarithm is always in float32, so that a bucket does not depend on the model's dtype.
    """
    if bidirectional:
        n_buckets //= 2
        first, distance = (offset > 0) * n_buckets, offset.abs()
    else:
        first, distance = torch.zeros_like(offset), (-offset).clamp(min=0)
    exact = n_buckets // 2
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    grown = exact + (share * (n_buckets - exact)).long()
    return first + torch.where(distance < exact, distance, grown.clamp(max=n_buckets - 1))


class FirePositions(PositionScheme):
    """down_proj(relu(up_proj(psi(|query - key|) / psi(max(L, query))))) for each head, with
    psi(x) = log(|c x| + 1) and L = |length_factor * threshold| (Li et al. 2023), in float32 or
    wider."""

    def __init__(self, *, n_heads: int, d_hidden: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.c = nn.Parameter(torch.empty(1))
        self.length_factor = nn.Parameter(torch.ones(1))
        self.up_proj = nn.Linear(1, d_hidden)
        self.down_proj = nn.Linear(d_hidden, n_heads)

    def bias(self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The bias (..., heads, query, key) for the positions of queries and keys, (...,
        length)."""
        c = widen(self.c)
        distance = (queries[..., :, None] - keys[..., None, :]).to(c.dtype)
        least = (widen(self.length_factor) * self.threshold).abs()
        seen = torch.maximum(queries[..., :, None].to(c.dtype), least)
        share = _psi(c * distance) / (_psi(c * seen) + EPS)
        with without_autocast(share):
            hidden = F.relu(_mapped(self.up_proj, share[..., None]))
            bias = _mapped(self.down_proj, hidden)
        return bias.movedim(-1, -3).to(dtype)


def _psi(x: torch.Tensor) -> torch.Tensor:
    return x.abs().log1p()


def _mapped(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The map of x in float32 or wider, in which it is."""
    return F.linear(x, widen(linear.weight), widen(linear.bias))


class GridBiasPositions(PositionScheme):
    """A learned bias for each distance of two patches and head, `weight` (distances + 3, n_heads):
    the last three rows are those from the class token, to it, and from it to itself (Bao et al.
    2021)."""

    def __init__(self, *, n_heads: int, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns
        n_distances = (2 * rows - 1) * (2 * columns - 1)
        self.weight = nn.Parameter(torch.empty(n_distances + 3, n_heads))

    def bias(self, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The bias (..., heads, query, key) for the positions of queries and keys, (...,
        length)."""
        from_first, to_first = (queries < 1)[..., :, None], (keys < 1)[..., None, :]
        down, right = (
            query[..., :, None] - key[..., None, :]
            for query, key in zip(self._places(queries), self._places(keys), strict=True)
        )
        row = (down + self.rows - 1) * (2 * self.columns - 1) + right + self.columns - 1
        n = self.weight.shape[0]
        row = torch.where(from_first, n - 3, row)
        row = torch.where(to_first, torch.where(from_first, n - 1, n - 2), row)
        return self.weight[row].movedim(-1, -3).to(dtype)

    def _places(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The row and the column of the patch at each position; 0 at the class token."""
        patch = (positions - 1).clamp(min=0)
        return patch // self.columns, patch % self.columns


class DisentangledPositions(PositionScheme):
    """A learned vector for each distance from -span to span - 1, `weight` (2 * span, d_model) (He
    et al. 2020)."""

    def __init__(
        self, *, d_model: int, max_distance: int, n_buckets: int | None, norm: nn.Module
    ) -> None:
        super().__init__()
        self.max_distance, self.n_buckets = max_distance, n_buckets
        self.span = n_buckets or max_distance
        self.weight = nn.Parameter(torch.empty(2 * self.span, d_model))
        self.norm = norm

    def vectors(self) -> torch.Tensor:
        """The vector of each distance, (2 * span, d_model)."""
        return self.norm(self.weight)

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        """The row of the distance query less key, (..., query, key), for positions (...,
        length)."""
        distance = positions[..., :, None] - positions[..., None, :]
        if self.n_buckets is not None:
            distance = log_buckets(
                distance, n_buckets=self.n_buckets, max_distance=self.max_distance
            )
        return (distance + self.span).clamp(0, 2 * self.span - 1)


def log_buckets(distance: torch.Tensor, *, n_buckets: int, max_distance: int) -> torch.Tensor:
    """The bucket of each distance: itself up to n_buckets / 2, then by the logarithm, up to
    n_buckets - 1 at max_distance - 1 (the code of DeBERTa V2; in float32 for every model)."""
    half = n_buckets // 2
    # Below half, the logarithm is not used, but its argument must not be 0.
    far = distance.abs().clamp(min=half)
    end = torch.tensor((max_distance - 1) / half, dtype=torch.float32, device=distance.device)
    share = torch.log((far / half).float()) / torch.log(end)
    grown = (torch.ceil(share * (half - 1)) + half).long()
    return torch.where(distance.abs() <= half, distance, grown * distance.sign())
