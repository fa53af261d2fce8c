"""From an image to the pixels that a model was trained on.

Each step gives what the image processors of `transformers` give that compute with Pillow and
NumPy (`*ImageProcessorPil`). Those that compute with torchvision round a resized value differently,
by one or two of 255; they are followed only where there are no others (`order = "scale_first"`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from zoo.errors import InputError, Problem
from zoo.images.files import MAX_PIXELS
from zoo.images.settings import ImageSettings

if TYPE_CHECKING:
    from PIL.Image import Image

_FILTERS = {2: "bilinear", 3: "bicubic"}
"""The filters of torch, by Pillow's numbers."""


def pixels_of(image: Image, settings: ImageSettings) -> torch.Tensor:
    """Return the pixels of an RGB image, (3, height, width), in float32.

    Raises:
        InputError: resizing would make an image that is too large.
    """
    height, width = image.height, image.width
    if settings.do_resize:
        height, width = settings.size.of(height, width)
        if height * width > MAX_PIXELS:
            raise InputError(
                Problem(
                    f"{image.width:,} x {image.height:,} pixels would become {width:,} x "
                    f"{height:,}, more than {MAX_PIXELS:,} pixels",
                    help="the image is too long for its width: cut it first",
                )
            )
    if settings.order == "scale_first":
        values = _scaled(np.array(image), settings)
        if settings.do_resize:
            values = _resized(values, height, width, _FILTERS[settings.resample])
        values = _cropped(values, settings)
    else:
        if settings.do_resize:
            image = image.resize((width, height), settings.resample)
        values = _scaled(_cropped(np.array(image), settings), settings)
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
    tops = [
        max(0, (size - wanted) // 2)
        for size, wanted in zip(values.shape, settings.output_size, strict=False)
    ]
    rows, columns = (
        slice(top, top + wanted) for top, wanted in zip(tops, settings.output_size, strict=True)
    )
    return values[rows, columns]
