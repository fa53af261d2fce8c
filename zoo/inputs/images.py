"""Checks of the images that a model is called with, and of their places in texts."""

from __future__ import annotations

import torch

from zoo.purpose import AnySize, InsertedImages, Tiling
from zoo.transformer import Pixels, TiledImage


def check_images(images: object, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return images, (batch, channels, height, width), after checking that they are of this shape,
    (channels, height, width).

    Raises:
        TypeError: they are not a tensor of floating-point numbers.
        ValueError: their shape is wrong.
    """
    channels, height, width = shape
    sizes = f"(batch, {channels}, {height}, {width})"
    if not isinstance(images, torch.Tensor):
        hint = "; `torch.stack` makes one of several" if isinstance(images, list | tuple) else ""
        raise TypeError(
            f"this model takes a tensor of images, {sizes}, not a {type(images).__name__}{hint}"
        )
    _check_floats(images, sizes)
    found = tuple(images.shape)
    if len(found) == 4 and found[1:] == shape:
        return images
    hint = ""
    if found == shape:
        hint = "; a single image is `image[None]`"
    elif found[-3:] == (height, width, channels):
        hint = "; the channels come first: `images.movedim(-1, -3)`"
    elif len(found) in (3, 4) and found[-3] == channels:
        hint = f"; resize the images to {height} x {width} pixels, as in training"
    raise ValueError(f"images are (batch, channels, height, width) = {sizes}, not {found}{hint}")


def _check_floats(images: torch.Tensor, sizes: str) -> None:
    if not images.is_floating_point():
        raise TypeError(
            f"images are floating-point numbers {sizes}, not {images.dtype}: scale the pixels as "
            "they were in training"
        )


def check_images_of_any_size(
    images: object, channels: int, cut: AnySize
) -> tuple[torch.Tensor, ...]:
    """Return images, each (channels, height, width), after checking that they are such, and that
    they can be cut so.

    Raises:
        TypeError: they are neither a tensor nor a list of tensors, or not of floating-point
            numbers.
        ValueError: the shape of one is wrong, or there are none.
    """
    sizes, unit, longest = f"({channels}, height, width)", cut.unit, cut.longest
    if not isinstance(images, torch.Tensor | list | tuple):
        raise TypeError(
            f"this model takes a list of images, tensors {sizes}, not a {type(images).__name__}"
        )
    if not len(images):
        raise ValueError("there are no images: leave them out")
    for number, image in enumerate(images):
        if not isinstance(image, torch.Tensor):
            raise TypeError(f"image {number} is a tensor {sizes}, not a {type(image).__name__}")
        _check_floats(image, sizes)
        found = tuple(image.shape)
        if len(found) != 3 or found[0] != channels:
            hint = ""
            if isinstance(images, torch.Tensor) and images.dim() == 3:
                hint = "; a single image is `[image]`"
            elif len(found) == 3 and found[-1] == channels:
                hint = "; the channels come first: `image.movedim(-1, -3)`"
            raise ValueError(f"image {number} is {sizes}, not {found}{hint}")
        if not found[1] * found[2] or found[1] % unit or found[2] % unit:
            raise ValueError(
                f"the height and the width of an image are multiples of {unit} pixels, and image "
                f"{number} has {found[1]} x {found[2]}"
            )
        if longest is not None and max(found[1:]) > longest:
            raise ValueError(
                f"the height and the width of an image are {longest} pixels at most, and image "
                f"{number} has {found[1]} x {found[2]}"
            )
    return tuple(images)


def check_tiled_images(
    images: object, shape: tuple[int, int, int], tiling: Tiling
) -> tuple[TiledImage, ...]:
    """Return images with their tiles, each of this shape, after checking that they are such, and
    that their tiles are those of their sizes. A tensor holds images that are read as a whole.

    Raises:
        TypeError: they are neither a tensor of floating-point numbers nor a list of `TiledImage`s.
        ValueError: the shape of one is wrong, or there are none.
    """
    if isinstance(images, torch.Tensor):
        whole = check_images(images, shape)
        return tuple(TiledImage(one[None], *shape[1:]) for one in whole)
    if not isinstance(images, list | tuple):
        raise TypeError(
            f"this model takes a list of images, each a `TiledImage`, not a {type(images).__name__}"
        )
    if not images:
        raise ValueError("there are no images: leave them out")
    for number, image in enumerate(images):
        if not isinstance(image, TiledImage):
            raise TypeError(f"image {number} is a `TiledImage`, not a {type(image).__name__}")
        n_tiles = len(check_images(image.tiles, shape))
        if image.height < 1 or image.width < 1:
            raise ValueError(f"image {number} has {image.height} x {image.width} pixels")
        rows, columns = tiling.grid(image.height, image.width)
        if n_tiles not in (1, wanted := 1 + rows * columns):
            raise ValueError(
                f"an image of {image.height} x {image.width} pixels has {rows} x {columns} tiles "
                f"and one of the whole, {wanted} together, and image {number} has {n_tiles}"
            )
    return tuple(images)


def n_states_of(images: Pixels, how: InsertedImages) -> list[int]:
    """The number of states of each image that fits the model."""
    return [sum(rows) for rows in rows_of(images, how)]


def rows_of(images: Pixels, how: InsertedImages) -> list[list[int]]:
    """The number of states in each row of each image; those of images that are not of any size
    count as a single row."""
    found = []
    for image in images:
        if isinstance(image, torch.Tensor):
            found.append(how.rows_of(*image.shape[1:]))
            continue
        assert how.tiling is not None  # as `check_tiled_images` has checked
        found.append([how.tiling.states_of(image.height, image.width, len(image.tiles))])
    return found
