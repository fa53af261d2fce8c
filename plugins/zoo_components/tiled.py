"""Attention within tiles of an image: the `attention` slot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from zoo.component import Size
from zoo.layout import Layout
from zoo_components.self_attention import SelfAttention

if TYPE_CHECKING:
    from torch import nn


class Tiled(SelfAttention):
    """Multi-head attention of the patches of an image of any size within square tiles, of which the
    last of a row or a column may be smaller: a patch attends to those of its own tile (Qwen2.5-VL:
    Bai et al. 2025, arXiv:2502.13923, section 2.1.1). Of tokens without a row and a column, both
    are the position, so that a tile is a chunk of the sequence."""

    example: ClassVar[Mapping[str, Any]] = {"tile": 3}
    tile: Size
    """The height and the width of a tile, in patches."""

    @property
    def axes(self) -> int:
        return 2

    def layout(self) -> Layout:
        found = super().layout()
        return replace(found, label=f"{found.label}, tile {self.tile}")

    def build(self) -> "nn.Module":
        from zoo_components.modules.tiled import TiledAttention

        return TiledAttention(self._common, tile=self.tile)
