"""Rearrange the elements of one tensor of a checkpoint into one or several tensors of the zoo.

No relayout does arithmetic, so each can be undone to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import einops
import torch

PART = "p"
"""The axis along which the parts of a fused tensor are concatenated."""


@dataclass(frozen=True)
class Relayout:
    """A rearrangement of a tensor.

    Args:
        transpose: whether a matrix is stored as (in, out); vectors are left alone.
        axes: the axes of the tensor in the notation of einops, and after `->` those of each tensor
            of the zoo, if they differ. The parts are concatenated along `p`: `"(h p e) ..."` is
            query, key and value head by head.
        parts: the length of each part along `p`.
        sizes: the lengths of other axes.
    """

    transpose: bool = False
    axes: str | None = None
    parts: tuple[int, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return self.transpose or self.axes is not None

    def apply(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Convert a tensor of a checkpoint into those of the zoo. Raises `ValueError` if its shape
        does not fit."""
        if self.transpose and tensor.dim() == 2:
            tensor = tensor.t()
        if self.axes is None:
            return [tensor]
        stored, own = self._sides(self.axes)
        if not self.parts:
            return [_rearrange(tensor, f"{stored} -> {own}", self.sizes)]
        spread = _spread(stored)
        sizes = {**self.sizes, PART: sum(self.parts)}
        whole = _rearrange(tensor, f"{stored} -> {spread}", sizes)
        return [
            _rearrange(part, f"{spread} -> {own}", {})
            for part in torch.split(whole, list(self.parts))
        ]

    def undo(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Convert tensors of the zoo into one of the checkpoint. Raises `ValueError` if a shape
        does not fit."""
        whole = tensors[0]
        if self.axes is not None:
            stored, own = self._sides(self.axes)
            if self.parts:
                spread = _spread(stored)
                parts = [
                    _rearrange(tensor, f"{own} -> {spread}", {**self.sizes, PART: length})
                    for tensor, length in zip(tensors, self.parts, strict=True)
                ]
                if len({part.shape[1:] for part in parts}) > 1:
                    shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors)
                    raise ValueError(f"{shapes} cannot be the parts of one tensor")
                whole = _rearrange(torch.cat(parts), f"{spread} -> {stored}", {})
            else:
                whole = _rearrange(whole, f"{own} -> {stored}", self.sizes)
        return whole.t() if self.transpose and whole.dim() == 2 else whole

    @staticmethod
    def _sides(axes: str) -> tuple[str, str]:
        stored, arrow, own = axes.partition("->")
        return stored.strip(), own.strip() if arrow else stored.strip()


def _spread(axes: str) -> str:
    """Return the elementary axes, with the axis of the parts first."""
    names = [name for name in re.findall(r"\w+|\.\.\.", axes) if name not in (PART, "1")]
    return " ".join([PART, *names])


def _rearrange(tensor: torch.Tensor, pattern: str, sizes: Mapping[str, int]) -> torch.Tensor:
    used = {name: size for name, size in sizes.items() if re.search(rf"\b{name}\b", pattern)}
    try:
        return einops.rearrange(tensor, pattern, **used)
    except (einops.EinopsError, ZeroDivisionError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise ValueError(f"`{pattern}` does not fit {list(tensor.shape)}: {reason}") from None
