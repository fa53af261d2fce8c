"""Reading images as the settings of a model's folder say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from zoo.errors import InputError, WeightsError
from zoo.images.files import pillow, read_image
from zoo.images.pixels import Parts, parts_of, pixels_of, square_of
from zoo.images.published import TYPE, PublishedSettings, read_image_settings
from zoo.images.settings import TOO_LONG, ImageSettings
from zoo.purpose import AnySize, Tiling
from zoo.spec import ModelSpec
from zoo.wording import counted

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    ImageFile = str | os.PathLike[str] | bytes | Image
    """An image: the path of a file, its bytes, or an image of Pillow."""


class ImageReader:
    """Makes pixels of images for a model.

    Args:
        folder: the model's.
        config: the text of the `config.json` that it was imported with, if there was one.
        spec: the model's.
        shape: the (channels, height, width) of the images that it takes.
        any_size: how it cuts images, if it takes them of any size.
        tiling: how it cuts images, if it reads them in tiles too.
        fixed: the settings that its processor passes on in the place of those of the folder.
    """

    def __init__(
        self,
        folder: Path,
        config: str | None,
        spec: ModelSpec,
        shape: tuple[int, int, int],
        any_size: AnySize | None = None,
        tiling: Tiling | None = None,
        fixed: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.folder, self.config, self.spec, self.shape = folder, config, spec, shape
        self.any_size, self.tiling, self.fixed = any_size, tiling, fixed

    @cached_property
    def settings(self) -> ImageSettings:
        """How images become pixels.

        Raises:
            ZooError: Pillow is not installed.
            WeightsError: as `read_image_settings`, or by these settings images become others than
                the model takes.
        """
        pillow()
        published = read_image_settings(self.folder, self.config, self.fixed)
        self._check_size(published)
        settings = published.settings
        own = settings.merge_size or settings.pooling_kernel_size or settings.encoder_patch_size
        if self.any_size is None or own:
            return settings
        # The processor around it states the model's in the place of its own.
        return settings.model_copy(update={"patch_size": self.any_size.unit})

    def pixels(self, image: ImageFile) -> torch.Tensor:
        """The pixels of an image as a whole, (channels, height, width).

        Raises:
            InputError: it cannot be read, or does not fit the model.
        """
        return pixels_of(self._fitting(image), self.settings)

    def parts(self, image: ImageFile) -> Parts:
        """The parts of an image, if by the settings it becomes several. Raises as `pixels`."""
        return parts_of(self._fitting(image), self.settings)

    def square(self, image: ImageFile) -> Parts:
        """An image without its tiles, if by the settings it has such. Raises as `pixels`."""
        return square_of(self._fitting(image), self.settings)

    def _fitting(self, image: ImageFile) -> Image:
        rgb = read_image(image)
        if self.settings.output_size is None:  # otherwise `settings` has checked it
            self._check_result(rgb)
        return rgb

    def _check_size(self, published: PublishedSettings) -> None:
        channels, *size = self.shape
        settings, name = published.settings, self.spec.name
        if settings.unit is not None or self.any_size is not None:
            self._check_any_size(published)
            return
        self._check_tiling(published)
        key = "crop_size" if settings.do_center_crop else "size"
        key = key if settings.square is None else "max_image_size"
        if channels != 3:
            message = (
                f"images become RGB, and {name} takes images of {counted(channels, 'channel')}"
            )
            hint = "in Python, `zoo.load` returns the model, to be called with its own images"
            raise WeightsError(message, published.file.place(), hint)
        made = settings.output_size
        if made is not None and list(made) != size:
            raise WeightsError(
                f"by these settings images become {made[0]} x {made[1]} pixels, and {name} "
                f"takes {size[0]} x {size[1]}",
                published.file.place(key),
                help="where `transformers` stretches the positions of a model to other images, "
                "as those of DINOv2, the zoo does not: state the size that the model takes",
            )

    def _check_any_size(self, published: PublishedSettings) -> None:
        settings, name = published.settings, self.spec.name
        if self.any_size is None:
            message = f"by these settings images become of any size, and {name} takes those of one"
            raise WeightsError(message, published.file.place())
        if settings.unit is None:
            message = f"by these settings images become of one size, and {name} takes those of any"
            hint = "state an image processor of such images, such as `Qwen2VLImageProcessor`"
            raise WeightsError(message, published.file.place(TYPE), hint)
        for key, wanted in self._wanted(settings, self.any_size):
            if (found := getattr(settings, key)) != wanted:
                message = f"by these settings `{key}` is {found}, and that of {name} is {wanted}"
                raise WeightsError(message, published.file.place(key))

    @staticmethod
    def _wanted(settings: ImageSettings, cut: AnySize) -> list[tuple[str, int]]:
        """What settings of images of any size are to be, as the model cuts them."""
        if settings.merge_size is not None:
            frames = ("temporal_patch_size", cut.frames)
            return [("patch_size", cut.patch_size), ("merge_size", cut.merge), frames]
        if settings.encoder_patch_size is not None:
            return [("encoder_patch_size", cut.patch_size), ("downsample_factor", cut.merge)]
        if settings.pooling_kernel_size is not None:
            return [("patch_size", cut.patch_size), ("pooling_kernel_size", cut.merge)]
        return []

    def _check_tiling(self, published: PublishedSettings) -> None:
        found, wanted = published.settings.tiling, self.tiling
        if (found and found.grids) == (wanted and wanted.grids):
            return
        key, name = "image_grid_pinpoints", self.spec.name
        if wanted is None:
            message = f"by these settings images become tiles, and {name} takes them whole"
            raise WeightsError(message, published.file.place(key))
        sides = [[wanted.tile * rows, wanted.tile * columns] for rows, columns in wanted.grids]
        message = f"by these settings images do not become the tiles of {name}"
        hint = f"state them in `{key}`: {json.dumps(sides)}"
        raise WeightsError(message, published.file.place(key), hint)

    def _check_result(self, image: Image) -> None:
        _, *wanted = self.shape
        made = (image.height, image.width)
        if self.settings.do_resize:
            made = self.settings.resized(*made)
        if (unit := self.settings.unit) is not None:
            if made[0] % unit or made[1] % unit:
                raise InputError(
                    f"the image has {made[0]} x {made[1]} pixels, and the sides of those that "
                    f"the model takes are multiples of {unit}",
                    help="the settings of images resize none: give it images of such sides",
                )
            longest = None if self.any_size is None else self.any_size.longest
            if longest is not None and max(made) > longest:
                raise InputError(
                    f"the image becomes {made[1]:,} x {made[0]:,} pixels, and no side of those "
                    f"that the model takes is longer than {longest:,}",
                    help=TOO_LONG,
                )
            return
        if list(made) != wanted:
            raise InputError(
                f"the image becomes {made[0]} x {made[1]} pixels, and the model takes "
                f"{wanted[0]} x {wanted[1]}",
                help="the settings of images crop none: give it images of this shape",
            )
