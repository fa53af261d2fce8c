"""Images that are read from files, of which some are no images, or would fill the memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import closing, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO

from zoo.errors import InputError, ZooError
from zoo.files.media import open_media

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are read. Pillow knows more, of which some start other programs, such as EPS."""
MAX_PIXELS = 89_478_485
"""The most pixels of an image: those of which Pillow warns, a quarter of a gigabyte as RGB."""

_lock = Lock()
"""Held while warnings are hidden, which they are in all threads: of two that overlap, the one that
ends last would leave them hidden."""


def pillow() -> Any:
    """Return the package PIL.

    Raises:
        ZooError: it is not installed; the message says how to.
    """
    try:
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        message = "reading images needs the package `pillow`, which is not installed"
        raise ZooError(message, help="pip install 'zoo[images]'") from None
    return PIL


def read_image(source: str | os.PathLike[str] | bytes | Image) -> Image:
    """Read an image as RGB, as the pipelines of `transformers` do: turned as its EXIF data says,
    without its transparency. Of several images in a file, such as an animation, it is the first.

    Args:
        source: the path of a file, the bytes of one, or an image that Pillow has opened or made.

    Raises:
        InputError: there is no such file, it cannot be read or is not an image, or the image is
            damaged, cut off, or too large.
        ZooError: Pillow is not installed.
    """
    image_type = pillow().Image.Image
    if isinstance(source, image_type):
        return _as_rgb(source)
    if not isinstance(source, str | os.PathLike | bytes):
        raise InputError(
            "an image is the path of a file, bytes, or an image of Pillow, not of the type "
            f"`{type(source).__name__}`",
            help="`PIL.Image.fromarray` makes one of an array of bytes, (height, width, 3)",
        )
    with open_media(source, "an image", "*.jpg") as file:
        return _read(file)


def _read(file: BinaryIO) -> Image:
    pil = pillow()
    try:
        with _unwarned():
            opened = pil.Image.open(file, formats=FORMATS)
    except pil.UnidentifiedImageError:
        hint = f"these formats are read: {', '.join(FORMATS)}"
        raise InputError("this is not an image that can be read", help=hint) from None
    except pil.Image.DecompressionBombError:
        raise _too_large("it has") from None
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise _damaged(error) from None
    with closing(opened):
        return _as_rgb(opened)


def _as_rgb(image: Image) -> Image:
    if not image.width * image.height:
        raise InputError("the image has no pixels")
    if image.width * image.height > MAX_PIXELS:
        raise _too_large(f"{image.width:,} x {image.height:,} are")
    try:
        with _unwarned():
            turned = pillow().ImageOps.exif_transpose(image)
            return turned.convert("RGB")  # type: ignore[no-any-return]
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise _damaged(error) from None


@contextmanager
def _unwarned() -> Generator[None]:
    """Hide what Pillow warns of: sizes, which are checked, and odd metadata."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _too_large(what: str) -> InputError:
    return InputError(
        f"the image is too large: {what} more than {MAX_PIXELS:,} pixels",
        help="make it smaller first; a model sees some hundred pixels of each side",
    )


def _damaged(error: Exception) -> InputError:
    reason = str(error).split("\n")[0] or type(error).__name__
    return InputError(f"the image is damaged or cut off: {reason}")
