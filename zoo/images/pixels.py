"""From an image to the pixels that a model was trained on.

Each step gives what the image processors of `transformers` give that compute with Pillow and
NumPy (`*ImageProcessorPil`). Those that compute with torchvision round a resized value differently,
by one or two of 255; they are followed only where there are no others (`order = "scale_first"`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from zoo.errors import InputError
from zoo.images.files import MAX_PIXELS
from zoo.images.settings import TOO_LONG, ImageSettings

if TYPE_CHECKING:
    from PIL.Image import Image

_FILTERS = {2: "bilinear", 3: "bicubic"}
"""The filters of torch, by Pillow's numbers."""


class Parts(NamedTuple):
    """The parts of an image that a model reads as images of their own.

    Args:
        pixels: those of each part, (3, height, width): row by row, and then of the whole image.
        rows: the number of rows of parts; 0 if the whole image is the only one.
        columns: that of their columns.
    """

    pixels: tuple[torch.Tensor, ...]
    rows: int = 0
    columns: int = 0


def parts_of(image: Image, settings: ImageSettings) -> Parts:
    """Return the parts of an RGB image, in float32.

    Raises:
        InputError: as `pixels_of`.
    """
    if settings.most_tiles > 1:
        assert settings.size is not None  # as `ImageSettings` has checked
        assert settings.size.sides is not None
        rows, columns = settings.tiles(image.height, image.width)
        height, width = settings.size.sides
        spread = _to(image, rows * height, columns * width, settings)
        return _cut(spread, image, (rows, columns), settings)
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
    return _cut(image, image, (rows, columns), settings)


def _cut(image: Image, whole: Image, grid: tuple[int, int], settings: ImageSettings) -> Parts:
    """The parts of an image whose sides are those of so many rows and columns of parts, and `whole`
    resized to one more, if there are several."""
    rows, columns = grid
    height, width = image.height // rows, image.width // columns
    places = [(height * row, width * column) for row in range(rows) for column in range(columns)]
    parts = [image.crop((left, top, left + width, top + height)) for top, left in places]
    if len(parts) == 1:
        return Parts((_values(np.array(image), settings),))
    every = [*parts, _to(whole, height, width, settings)]
    return Parts(tuple(_values(np.array(part), settings) for part in every), rows, columns)


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
    return _normalised(_scaled(pixels, settings), settings)


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
