"""Small random inputs of modules, and changes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zoo.plugin_kit.sizes import SIZES
from zoo.position import Rotation

Tensors = tuple[torch.Tensor, ...]
BATCH, LENGTH, MEMORY_LENGTH = 2, 6, 5
LONG = 70
"""A length for what begins only after some tokens, such as windows, chunks and blocks of 64. A
module that has a table of its own for fewer is not called with it."""
WIDTH, VOCAB = SIZES["d_model"], SIZES["vocab"]
HIDDEN = 2
"""The token that `hiding_one` hides."""


def vectors(
    dtype: torch.dtype, seed: int, length: int = LENGTH, width: int = WIDTH
) -> torch.Tensor:
    """Return standard normal vectors, (batch, length, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, width, generator=random, dtype=torch.float32).to(dtype)


def streams(x: torch.Tensor, n_streams: int) -> torch.Tensor:
    """Return different residual streams of the tokens x (..., width), (..., n_streams, width)."""
    return torch.stack([x.roll(number, -1) for number in range(n_streams)], -2)


def pixels(dtype: torch.dtype, seed: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return images of this shape, (batch, channels, height, width), of standard normal values."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, *shape, generator=random, dtype=torch.float32).to(dtype)


def ids(seed: int, length: int = LENGTH) -> torch.Tensor:
    """Return ids of tokens, (batch, length), none of them 0, which may mean padding."""
    return torch.randint(1, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def with_another(x: torch.Tensor, position: int) -> torch.Tensor:
    """Return a copy of `x` with different values at a position. A vector becomes one of another
    length and direction, and not its opposite: even functions, such as products of two maps, have
    the same output for both."""
    changed, old = x.clone(), x[:, position]
    if x.is_floating_point():
        changed[:, position] = old - 3.0 * old.roll(1, -1)
    else:
        changed[:, position] = old % (VOCAB - 1) + 1
    return changed


def later(length: int) -> Sequence[int]:
    """Return the positions that are changed, one at a time, to find what sees later tokens: each of
    a few tokens, and of many one in the middle and the last."""
    return range(1, length) if length <= LENGTH else (length // 2, length - 1)


def hiding(x: torch.Tensor, position: int) -> torch.Tensor:
    """Return a mask (batch, length) that hides one token of each row of x."""
    seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    seen[:, position] = False
    return seen


def hiding_one(x: torch.Tensor) -> torch.Tensor:
    """Return a mask that hides a token that is not an end, which heads may pool whatever it is, and
    which no other token of a causal model may see."""
    return hiding(x, HIDDEN)


def without_hidden(output: torch.Tensor) -> torch.Tensor:
    """Return the outputs (batch, length, ...) without those of the token that `hiding_one` hides:
    it is padding, and may be left out."""
    return torch.cat([output[:, :HIDDEN], output[:, HIDDEN + 1 :]], 1)


def padded() -> torch.Tensor:
    """Return which tokens are no padding, (batch, length): the first two of the first row are."""
    seen = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    seen[0, :2] = False
    return seen


def turning_at(positions: torch.Tensor) -> Rotation:
    """Return the rotation of vectors at positions (..., length), which are the angles."""
    return turning(positions.double())


def turning(angles: torch.Tensor) -> Rotation:
    """Return a rotation as position schemes do: a map of vectors of any width by these angles,
    (length,) or (batch, length), one for each position; the identity where the angle is 0."""
    if angles.dim() == 2:
        angles = angles[:, None]  # the same for all heads

    def turn(x: torch.Tensor) -> torch.Tensor:
        cos, sin = angles.cos()[..., None], angles.sin()[..., None]
        return (x * cos + x.roll(1, -1) * sin).to(x.dtype)

    return turn
