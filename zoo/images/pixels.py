"""From an image to the pixels that a model was trained on.

Each step gives what the image processors of `transformers` give that compute with Pillow and
NumPy (`*ImageProcessorPil`). Those that compute with torchvision round a resized value differently,
by one of 255 and seldom by more, and not on all processors alike. Of those that have no other, each
step but the resizing of bytes is followed, and that of floats (`order = "scale_first"`) too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from zoo.errors import InputError
from zoo.images.files import MAX_PIXELS, pillow
from zoo.images.settings import TOO_LONG, ImageSettings
from zoo.purpose import Tiling
from zoo.transformer import TiledImage

if TYPE_CHECKING:
    from PIL.Image import Image

_FILTERS = {2: "bilinear", 3: "bicubic"}
"""The filters of torch, by Pillow's numbers."""


class Parts(NamedTuple):
    """The parts of an image that a model reads as images of their own.

    Args:
        pixels: those of each part, (3, height, width): row by row, and then of the whole image; or
            all of them as one `TiledImage`.
        rows: the number of rows of parts; 0 if the whole image is the only one.
        columns: that of their columns.
    """

    pixels: tuple[torch.Tensor | TiledImage, ...]
    rows: int = 0
    columns: int = 0


def parts_of(image: Image, settings: ImageSettings) -> Parts:
    """Return the parts of an RGB image, in float32.

    Raises:
        InputError: as `pixels_of`.
    """
    if settings.tiling is not None:
        return Parts((_tiled(image, settings.tiling, settings),))
    if settings.becomes_tiles or settings.is_large(image.height, image.width):
        grid = settings.tiles(image.height, image.width)
        return _parts(_spread(image, grid, settings), image, grid, settings)
    side = settings.square
    if side is None or not settings.do_image_splitting:
        return Parts((pixels_of(image, settings),))
    if settings.do_resize:
        image = _to(image, *settings.resized(image.height, image.width), settings)
    ratio = image.width / image.height
    if image.width >= image.height:
        columns = math.ceil(image.width / side)
        rows = math.ceil(int(columns * side / ratio) / side)
    else:
        rows = math.ceil(image.height / side)
        columns = math.ceil(int(rows * side * ratio) / side)
    image = _to(image, rows * side, columns * side, settings)
    return _parts(image, image, (rows, columns), settings)


def _spread(image: Image, grid: tuple[int, int], settings: ImageSettings) -> Image:
    """An image resized to so many rows and columns of tiles, with black on its right and below it
    if it keeps its shape."""
    high, wide = (n * side for n, side in zip(grid, settings.tile, strict=True))
    if settings.canvas != "padded":
        return _to(image, high, wide, settings)
    spread: Image = pillow().Image.new("RGB", (wide, high))
    spread.paste(_to(image, *settings.padded(image.height, image.width, grid), settings))
    return spread


def _tiled(image: Image, tiling: Tiling, settings: ImageSettings) -> TiledImage:
    """An image with its tiles: resized to the grid of these without changing its shape, with black
    around it."""
    rows, columns = tiling.grid(image.height, image.width)
    high, wide = rows * tiling.tile, columns * tiling.tile
    by_height, by_width = high / image.height, wide / image.width
    if by_width < by_height:
        height, width = min(math.ceil(image.height * by_width), high), wide
    else:
        height, width = high, min(math.ceil(image.width * by_height), wide)
    around = pillow().Image.new("RGB", (wide, high))
    around.paste(_to(image, height, width, settings), ((wide - width) // 2, (high - height) // 2))
    *tiles, whole = _cut(around, image, (rows, columns), settings)
    return TiledImage(torch.stack([whole, *tiles]), image.height, image.width)


def square_of(image: Image, settings: ImageSettings) -> Parts:
    """Return an RGB image that is read without its tiles, in float32: with the mean colour around
    it where it is no square.

    Raises:
        InputError: it is too long for its width.
    """
    side, tiling = max(image.width, image.height), settings.tiling
    assert tiling is not None  # of an image processor that makes tiles
    if side**2 > MAX_PIXELS:
        raise InputError(
            f"around {image.width:,} x {image.height:,} pixels, a square has more than "
            f"{MAX_PIXELS:,}",
            help=TOO_LONG,
        )
    colour = tuple(int(255 * mean) for mean in settings.image_mean)
    around = pillow().Image.new("RGB", (side, side), colour)
    around.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    values = _values(np.array(_to(around, tiling.tile, tiling.tile, settings)), settings)
    return Parts((TiledImage(values[None], image.height, image.width),))


def _parts(image: Image, whole: Image, grid: tuple[int, int], settings: ImageSettings) -> Parts:
    """The parts of `_cut`; without the whole if there is only one."""
    found = tuple(_cut(image, whole, grid, settings))
    return Parts(found, *grid) if len(found) > 2 else Parts(found[:1])


def _cut(
    image: Image, whole: Image, grid: tuple[int, int], settings: ImageSettings
) -> Iterator[torch.Tensor]:
    """Yield the parts of an image whose sides are those of so many rows and columns of parts, and
    `whole` resized to one more. Raises as `pixels_of`."""
    rows, columns = grid
    height, width = image.height // rows, image.width // columns
    for top, left in product(range(0, image.height, height), range(0, image.width, width)):
        yield _values(np.array(image.crop((left, top, left + width, top + height))), settings)
    if settings.unit is not None:  # of which the whole has a size of its own
        height, width = settings.resized(whole.height, whole.width)
    yield _values(np.array(_to(whole, height, width, settings)), settings)


def _to(image: Image, height: int, width: int, settings: ImageSettings) -> Image:
    """The image, resized."""
    return image.resize((width, height), settings.resample)


def pixels_of(image: Image, settings: ImageSettings) -> torch.Tensor:
    """Return the pixels of an RGB image, (3, height, width), in float32, as a single image.

    Raises:
        InputError: resizing would make an image that is too large.
    """
    height, width = image.height, image.width
    if settings.do_resize:
        height, width = settings.resized(height, width)
        if height * width > MAX_PIXELS:
            raise InputError(
                f"{image.width:,} x {image.height:,} pixels would become {width:,} x "
                f"{height:,}, more than {MAX_PIXELS:,} pixels",
                help=TOO_LONG,
            )
    if settings.order == "scale_first":
        values = _scaled(np.array(image), settings)
        if settings.do_resize:
            values = _resized(values, height, width, _FILTERS[settings.resample])
        values = _cropped(values, settings)
    else:
        if settings.do_resize:
            image = _to(image, height, width, settings)
        if settings.square is not None:
            image = _to(image, settings.square, settings.square, settings)
        values = _scaled(_cropped(np.array(image), settings), settings)
    return _normalised(values, settings)


def _values(pixels: np.ndarray, settings: ImageSettings) -> torch.Tensor:
    """The values of pixels (height, width, 3) that are not to be resized."""
    if settings.precision == "bfloat16" and settings.do_rescale and settings.do_normalize:
        return _in_bfloat16(pixels, settings)
    return _normalised(_scaled(pixels, settings), settings)


def _in_bfloat16(pixels: np.ndarray, settings: ImageSettings) -> torch.Tensor:
    """As `_values`, with each step rounded to bfloat16."""
    values = torch.from_numpy(pixels).bfloat16() * settings.rescale_factor
    mean, std = (values.new_tensor(one) for one in (settings.image_mean, settings.image_std))
    return ((values - mean) / std).float().movedim(-1, 0).contiguous()


def _normalised(values: np.ndarray, settings: ImageSettings) -> torch.Tensor:
    """Scaled values (height, width, 3), as the model takes them, (3, height, width)."""
    if settings.do_normalize:
        mean = np.array(settings.image_mean, np.float32)
        values = (values - mean) / np.array(settings.image_std, np.float32)
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


def _scaled(values: np.ndarray, settings: ImageSettings) -> np.ndarray:
    """Values (height, width, 3) times the factor, rounded once to float32."""
    factor = settings.rescale_factor if settings.do_rescale else 1.0
    return (values * np.float64(factor)).astype(np.float32)


def _resized(values: np.ndarray, height: int, width: int, how: str) -> np.ndarray:
    """Values (height, width, 3), resized with a filter that is as wide as needed to leave out no
    pixel."""
    channels_first = torch.from_numpy(values).movedim(2, 0)[None]
    made = F.interpolate(
        channels_first, (height, width), mode=how, align_corners=False, antialias=True
    )
    return made[0].movedim(0, 2).numpy()


def _cropped(values: np.ndarray, settings: ImageSettings) -> np.ndarray:
    """The centre of values (height, width, 3); zeros surround what is smaller than that. An odd
    pixel is left out at the bottom and on the right, and added at the top and on the left."""
    if not settings.do_center_crop or settings.output_size is None:
        return values
    pads = [
        (max(0, -((size - wanted) // 2)), max(0, (wanted - size) // 2))
        for size, wanted in zip(values.shape, settings.output_size, strict=False)
    ]
    values = np.pad(values, (*pads, (0, 0)))
    rows, columns = (
        slice(top := (size - wanted) // 2, top + wanted)
        for size, wanted in zip(values.shape, settings.output_size, strict=False)
    )
    return values[rows, columns]
