"""A decoder whose text has images in it that are read as a whole and in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from zoo.inputs.images import check_tiled_images
from zoo.purpose import Tiling
from zoo.transformer import Pixels, TiledImage
from zoo_components.modules.image_text import ImageTextDecoder
from zoo_components.modules.inserting import Read
from zoo_components.modules.stack import Maps


class TiledImageTextDecoder(ImageTextDecoder):
    """model(target, images) = head(decode(target with the states of images in it)), of images that
    are each a `zoo.transformer.TiledImage`, or a tensor of such as are read as a whole.

    Args:
        tiling: how images are cut.
        shape: the (channels, height, width) of a tile.
        width: that of the states that stand in a text.
        options: as for `ImageTextDecoder`.
    """

    def __init__(
        self, *, tiling: Tiling, shape: tuple[int, int, int], width: int, **options: Any
    ) -> None:
        super().__init__(**options)
        self.tiling, self.shape = tiling, shape
        self.newline = nn.Parameter(torch.empty(width))

    def read_images(self, images: Pixels) -> Sequence[torch.Tensor]:
        """The states that stand in a text for each image, (states of the image, width of the
        vectors of tokens).

        Raises:
            TypeError: they are neither a tensor nor a list of `TiledImage`s of floating-point
                numbers.
            ValueError: the shape of one is wrong, or the number of its tiles.
        """
        return [one.states for one in self._read(images, return_attention=False)[0]]

    def _read(self, images: Pixels, *, return_attention: bool) -> tuple[Sequence[Read], Maps]:
        checked = check_tiled_images(images, self.shape, self.tiling)
        tiles = torch.cat([image.tiles for image in checked])
        states, maps = self.of_images(tiles, return_attention=return_attention)
        each = states.split([len(image.tiles) for image in checked])
        return [Read(self._packed(*one)) for one in zip(checked, each, strict=True)], maps

    def _packed(self, image: TiledImage, states: torch.Tensor) -> torch.Tensor:
        """The states of an image, (n, width), of those of its tiles, (tiles, states, width)."""
        whole, tiles = states[0], states[1:]
        if not len(tiles):
            return torch.cat([whole, self.newline[None]])
        grid, side = self.tiling.grid(image.height, image.width), self.tiling.side
        rows_first = tiles.unflatten(1, (side, side)).unflatten(0, grid).transpose(1, 2)
        found = rows_first.flatten(2, 3).flatten(0, 1)[self.tiling.kept(image.height, image.width)]
        if (shape := self.tiling.shape(image.height, image.width)) != found.shape[:2]:
            found = F.interpolate(found.movedim(-1, 0)[None], shape, mode="bilinear")[0]
            found = found.movedim(0, -1)
        ends = self.newline.expand(len(found), 1, -1)
        return torch.cat([whole, torch.cat([found, ends], 1).flatten(0, 1)])
