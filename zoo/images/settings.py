"""How images become pixels: the settings of the image processors of `transformers`, and which sizes
follow from them. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from zoo.errors import InputError
from zoo.images.files import MAX_PIXELS
from zoo.purpose import Tiling

LONGEST = 4096
"""The longest side of an image that is to become squares, as in `transformers`."""
LONGEST_RATIO = 200
"""The longest side of an image of any size over the shorter one, as in `transformers`."""
MOST_TILES = 1000
"""The most tiles of an image. Published settings have a few dozen at most."""
TOO_LONG = "the image is too long for its width: cut it first"
_NUMBERS_OF_PIXELS = {
    "shortest_edge": "min_pixels",
    "longest_edge": "max_pixels",
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
}
"""The keys of the `size` of images of any size, by which settings they are."""
OF_ANY_SIZE = ("patch_size", "merge_size", "temporal_patch_size", "min_pixels", "max_pixels")
"""The settings that only image processors of images of any size have; with a `merge_size`, they
need all of them."""


def _as_tuple(value: object) -> object:
    """An array, of which strict models would take none as a tuple."""
    return tuple(value) if isinstance(value, list) else value


_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
_Pixels = Annotated[int, Field(gt=0)]
_Tiles = Annotated[int, Field(gt=0, le=MOST_TILES)]
_Sides = Annotated[tuple[_Pixels, _Pixels], BeforeValidator(_as_tuple)]
_Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A number that values are multiplied with or divided by, within what float32 can compute."""
_Mean = Annotated[float, Field(ge=-1e6, le=1e6)]


def _for_each_channel(value: object) -> object:
    """One number for all channels, as three."""
    if isinstance(value, list):
        if len(value) != 3:
            raise ValueError("must be a number, or three of them: one for each channel")
        return tuple(value)
    return (value,) * 3 if isinstance(value, int | float) else value


def _one_side(value: object) -> object:
    """The side of squares that are stated by both sides, `{"height": 16, "width": 16}`."""
    if isinstance(value, dict) and value.keys() == {"height", "width"}:
        if value["height"] != value["width"]:
            raise ValueError("must be as high as wide")
        return value["height"]
    return value


class Size(BaseModel):
    """The size of an image in pixels: both sides, or the shorter one, or the longer one."""

    model_config = _STRICT

    height: _Pixels | None = None
    width: _Pixels | None = None
    shortest_edge: _Pixels | None = None
    longest_edge: Annotated[int, Field(gt=0, le=LONGEST)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        written = {key for key, value in self if value is not None}
        if written not in ({"height", "width"}, {"shortest_edge"}, {"longest_edge"}):
            raise ValueError(
                "must state `height` and `width`, or `shortest_edge` alone, or `longest_edge` alone"
            )
        height, width = self.sides or self.of(1, 1)
        if height * width > MAX_PIXELS:
            raise ValueError(
                f"makes {height:,} x {width:,} pixels of an image, more than {MAX_PIXELS:,}"
            )
        return self

    @property
    def sides(self) -> tuple[int, int] | None:
        """The height and the width; None if they depend on the image."""
        return None if self.height is None or self.width is None else (self.height, self.width)

    def of(self, height: int, width: int) -> tuple[int, int]:
        """The height and the width of an image of this one, resized. With `shortest_edge`, the
        longer side is rounded down; with `longest_edge`, the shorter one up to an even number."""
        if self.sides is not None:
            return self.sides
        if self.longest_edge is not None:
            # `aspect_ratio` in `transformers`, whose roundings are followed
            ratio, long = width / height, self.longest_edge
            short = int(long / ratio) if width >= height else int(long * ratio)
            short = max(short + short % 2, 1)
            return (short, long) if width >= height else (long, short)
        assert self.shortest_edge is not None  # `_check`
        long = self.shortest_edge * max(height, width) // min(height, width)
        return (self.shortest_edge, long) if height <= width else (long, self.shortest_edge)


class ImageSettings(BaseModel):
    """The steps from an image to pixels: resize, crop, scale, normalize."""

    model_config = _STRICT

    do_resize: bool = True
    size: Size | None = None
    """None for image processors of images of any size."""
    resample: Annotated[int, Field(ge=0, le=5)]
    """The filter: nearest, Lanczos, bilinear, bicubic, box or Hamming, as Pillow numbers them."""
    do_center_crop: bool = False
    crop_size: Size | None = None
    do_rescale: bool = True
    rescale_factor: _Factor = 1 / 255
    do_normalize: bool = True
    image_mean: Annotated[tuple[_Mean, _Mean, _Mean], BeforeValidator(_for_each_channel)]
    image_std: Annotated[tuple[_Factor, _Factor, _Factor], BeforeValidator(_for_each_channel)]
    do_pad: bool = False
    max_image_size: Size | None = None
    """The side of squares: an image becomes such squares and a smaller image of the whole, or one
    square alone. None for image processors that know none of this."""
    do_image_splitting: bool = False
    """Whether it becomes several, if it is larger than one."""
    crop_to_patches: bool = False
    """Whether an image becomes tiles of `size` and a smaller image of the whole, or one tile alone:
    in as many rows and columns as are closest to its shape."""
    min_patches: _Tiles = 1
    """The fewest tiles."""
    max_patches: _Tiles = 1
    """The most tiles."""
    image_grid_pinpoints: Annotated[tuple[_Sides, ...] | None, BeforeValidator(_as_tuple)] = None
    """The heights and widths of the tiles of an image put together, of which it becomes those that
    show most of it, and a smaller image of the whole. None for image processors that know none."""
    do_pan_and_scan: bool = False
    """Whether parts of a long image are read too, of a number that depends on its shape."""
    default_to_square: bool = True
    """Whether a `size` that is one number is that of both sides, and not of the shorter one."""
    patch_size: Annotated[_Pixels | None, BeforeValidator(_one_side)] = None
    """The side of the patches of images of any size, of which the sides of an image become
    multiples. None for image processors that know none of this."""
    merge_size: _Pixels | None = None
    """The side of the squares of patches that become one state: the sides of an image become
    multiples of that of such a square. None for image processors that have a `size` which no image
    exceeds, and know no numbers of pixels."""
    temporal_patch_size: _Pixels | None = None
    """The number of frames of a film that a patch spans."""
    pooling_kernel_size: _Pixels | None = None
    """As `merge_size`, of image processors that give an image as many such squares as it may have.
    None for others."""
    max_soft_tokens: _Pixels | None = None
    """The most squares of an image."""
    encoder_patch_size: _Pixels | None = None
    """As `patch_size`, of image processors that read a large image of any size in tiles, too. None
    for others."""
    downsample_factor: _Pixels | None = None
    """As `merge_size`, of these."""
    min_image_tokens: _Pixels = 1
    """The fewest squares of patches that an image becomes."""
    max_image_tokens: _Pixels = 1
    """The most squares of patches that an image becomes, or a smaller image of the whole."""
    tile_size: _Pixels = 1
    """The side of a tile, in pixels."""
    min_tiles: _Tiles = 1
    """The fewest tiles."""
    max_tiles: _Tiles = 1
    """The most tiles."""
    max_pixels_tolerance: _Factor = 1.0
    """How many times the most squares an image must have for it to become tiles."""
    use_thumbnail: bool = True
    """Whether a smaller image of the whole follows the tiles."""
    min_pixels: _Pixels | None = None
    """The fewest pixels that an image becomes; `shortest_edge` of `size` is another name of it."""
    max_pixels: _Pixels | None = None
    """The most; `longest_edge` of `size` is another name of it."""
    canvas: Literal["closest_shape", "closest_size", "padded"] = "closest_shape"
    """Into how many rows and columns of tiles an image is cut: those whose shape is closest to its
    own; those in which it is enlarged least or, if all are too small for it, made smaller least; or
    these, with black on its right and below it, where it keeps its shape. It is the image
    processor's, and no setting."""
    resize_to_max_canvas: bool = False
    """Whether an image that is `padded` is enlarged most instead."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """In which values are scaled and normalised. It is the image processor's, and no setting."""
    order: Literal["resize_first", "scale_first"] = "resize_first"
    """Whether values are scaled before or after resizing. It is the image processor's, and no
    setting."""

    @model_validator(mode="before")
    @classmethod
    def _sizes(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Sizes in their older forms, a number or [height, width], as tables; those of images of
        any size as numbers of pixels."""
        if "merge_size" in values:
            return _numbers_of_pixels(values)
        square = values.get("default_to_square", True)
        return values | {
            key: _size(values[key], square=key == "crop_size" or square is True)
            for key in ("size", "crop_size", "max_image_size")
            if key in values
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.merge_size is not None and self.size is not None:
            raise ValueError(
                "`size` of images of any size must state numbers of pixels, `shortest_edge` and "
                "`longest_edge`, alone"
            )
        if self.do_center_crop and (self.crop_size is None or self.crop_size.sides is None):
            raise ValueError("`do_center_crop` needs a `crop_size` with `height` and `width`")
        if self.do_pan_and_scan:
            raise ValueError(
                "`do_pan_and_scan` is not supported: images are read whole, by `false`"
            )
        if self.merge_size is not None:
            self._check_any_size()
            return self
        if self.pooling_kernel_size is not None:
            self._check_budget()
            return self
        if self.encoder_patch_size is not None:
            self._check_large()
            return self
        if self.size is None:
            raise ValueError("there is no `size`")
        if self.patch_size is not None:
            self._check_at_most(self.size)
            return self
        if self.becomes_tiles:
            self._check_tiles(self.size)
        if self.image_grid_pinpoints is not None:
            self._check_grids(self.size, self.image_grid_pinpoints)
            return self
        if (self.max_image_size is None) != (self.size.longest_edge is None):
            raise ValueError(
                "`longest_edge` of `size` goes with a `max_image_size`, and this with it"
            )
        if self.max_image_size is None and (self.do_pad or self.do_image_splitting):
            raise ValueError("`do_pad` and `do_image_splitting` need a `max_image_size`")
        if self.max_image_size is not None and self.max_image_size.longest_edge is None:
            raise ValueError("`max_image_size` must state `longest_edge`")
        if self.order == "scale_first" and not (self.do_rescale and self.resample in (2, 3)):
            raise ValueError(
                "this image processor resizes scaled values, by a bilinear or bicubic filter: "
                "`do_rescale` must be true, and `resample` 2 or 3"
            )
        return self

    def _check_tiles(self, size: Size) -> None:
        if size.sides is None:
            raise ValueError("tiles need a `size` with `height` and `width`")
        if self.canvas == "padded" and size.height != size.width:
            raise ValueError("`size` must be that of a square, which is a tile")
        if self.canvas == "padded" and not self.do_resize:
            raise ValueError("images are resized before they become tiles: state `do_resize` true")
        if self.min_patches > self.max_patches:
            raise ValueError("`min_patches` must not be more than `max_patches`")
        height, width = size.sides
        if self.max_patches * height * width > MAX_PIXELS:
            raise ValueError(
                f"{self.max_patches} tiles (`max_patches`) of {height:,} x {width:,} pixels have "
                f"more than {MAX_PIXELS:,}"
            )

    def _check_grids(self, size: Size, grids: tuple[tuple[int, int], ...]) -> None:
        sides = {size.shortest_edge} if size.sides is None else set(size.sides)
        if self.crop_size is not None:
            sides |= {self.crop_size.height, self.crop_size.width}
        side, *others = sides
        if side is None or others:
            raise ValueError("`size` and `crop_size` must be those of one square, which is a tile")
        if not grids or any(height % side or width % side for height, width in grids):
            raise ValueError(
                f"`image_grid_pinpoints` must state whole numbers of tiles of {side} pixels"
            )
        if max(map(math.prod, grids)) > MAX_PIXELS:
            raise ValueError(f"`image_grid_pinpoints` states more than {MAX_PIXELS:,} pixels")

    def _check_any_size(self) -> None:
        for key in OF_ANY_SIZE:
            if getattr(self, key) is None:
                raise ValueError(f"images of any size need a `{key}`")
        if self.do_center_crop or self.max_image_size is not None or self.do_pad:
            raise ValueError("images of any size are neither cropped, nor divided, nor padded")

    def _check_budget(self) -> None:
        unit, most = self.unit, self.max_soft_tokens
        if unit is None or most is None:
            raise ValueError("`pooling_kernel_size` needs a `patch_size` and `max_soft_tokens`")
        if most * unit**2 > MAX_PIXELS:
            raise ValueError(
                f"{most} squares (`max_soft_tokens`) of {unit} x {unit} pixels have more than "
                f"{MAX_PIXELS:,}"
            )
        if self.do_center_crop or self.max_image_size is not None or self.do_pad:
            raise ValueError("images of any size are neither cropped, nor divided, nor padded")

    def _check_large(self) -> None:
        unit, most = self.unit, self.max_image_tokens
        assert unit is not None  # of all that have an `encoder_patch_size`
        if self.min_image_tokens > most:
            raise ValueError("`min_image_tokens` must not be more than `max_image_tokens`")
        if self.min_tiles > self.max_tiles:
            raise ValueError("`min_tiles` must not be more than `max_tiles`")
        if self.tile_size % unit:
            raise ValueError(
                f"`tile_size` must be a multiple of {unit}, the side of the squares of "
                "`downsample_factor` patches of `encoder_patch_size`"
            )
        if max(most * unit**2, self.max_tiles * self.tile_size**2) > MAX_PIXELS:
            raise ValueError(
                f"`max_image_tokens`, or `max_tiles` of `tile_size`, make more than {MAX_PIXELS:,} "
                "pixels of an image"
            )
        if not self.use_thumbnail:
            raise ValueError(
                "`use_thumbnail` must be true: tiles without an image of the whole are not read"
            )

    def _check_at_most(self, size: Size) -> None:
        if size.shortest_edge is not None:
            raise ValueError(
                "`size` of images of any size must state `longest_edge`, or `height` and `width`, "
                "which no image exceeds"
            )
        if self.do_center_crop or self.max_image_size is not None or self.do_image_splitting:
            raise ValueError("images of any size are neither cropped nor divided")

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The height and the width of an image of this one, resized.

        Raises:
            InputError: it is too long for its width.
        """
        if self.pooling_kernel_size is not None:
            return self._resized_to_budget(height, width)
        if self.encoder_patch_size is not None:
            return self._resized_to_tokens(height, width)
        if self.size is None:
            return self._resized_freely(height, width)
        if self.patch_size is not None:
            return self._resized_within(self.size, self.patch_size, height, width)
        return self.size.of(height, width)

    def _resized_within(self, size: Size, unit: int, height: int, width: int) -> tuple[int, int]:
        """`resized` of images of any size that exceed no `size`: they shrink if they are larger,
        and then both sides are rounded up to multiples of `unit`."""
        most = size.longest_edge
        highest, widest = size.sides or (most, most)
        assert highest is not None  # `_check_at_most`
        assert widest is not None
        ratio = max(height / highest, width / widest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        if not height * width:
            raise InputError(f"the image would become {width:,} x {height:,} pixels", help=TOO_LONG)
        return math.ceil(height / unit) * unit, math.ceil(width / unit) * unit

    def _resized_freely(self, height: int, width: int) -> tuple[int, int]:
        """`resized` of images of any size: `smart_resize` in `transformers`, whose roundings are
        followed."""
        if max(height, width) > LONGEST_RATIO * min(height, width):
            raise InputError(
                f"one side of {width:,} x {height:,} pixels is more than {LONGEST_RATIO} times "
                "the other",
                help=TOO_LONG,
            )
        unit, least, most = self.unit, self.min_pixels, self.max_pixels
        assert unit is not None  # `_check_any_size`
        assert least is not None
        assert most is not None
        closest = round(height / unit), round(width / unit)
        rows, columns = _between(closest, height, width, unit, least, most)
        return rows * unit, columns * unit

    def _resized_to_budget(self, height: int, width: int) -> tuple[int, int]:
        """`resized` to as many squares as there may be: `get_aspect_ratio_preserving_size` in
        `transformers`, whose roundings are followed."""
        unit, most = self.unit, self.max_soft_tokens
        assert unit is not None  # `_check_budget`
        assert most is not None
        factor = math.sqrt(most * unit**2 / (height * width))
        rows, columns = (math.floor(factor * side / unit) for side in (height, width))
        if rows == 0:
            rows, columns = 1, min(max(width // height, 1), most)
        elif columns == 0:
            rows, columns = min(height // width, most), 1
        return rows * unit, columns * unit

    def _resized_to_tokens(self, height: int, width: int) -> tuple[int, int]:
        """`resized` to no fewer and no more squares than there may be: `smart_resize` of LFM2-VL in
        `transformers`, whose roundings are followed."""
        unit, least, most = self.unit, self.min_image_tokens, self.max_image_tokens
        assert unit is not None  # of all that have an `encoder_patch_size`
        closest, area = self._squares(height, width), unit**2
        rows, columns = _between(closest, height, width, unit, least * area, most * area)
        if rows * columns > most:
            raise InputError(
                f"{width:,} x {height:,} pixels would become {columns:,} x {rows:,} squares of "
                f"patches, more than {most:,}",
                help=TOO_LONG,
            )
        return rows * unit, columns * unit

    def _squares(self, height: int, width: int) -> tuple[int, int]:
        """The numbers of rows and of columns of squares of patches that are closest to the sides of
        an image, and at least one."""
        assert self.unit is not None  # of all that have an `encoder_patch_size`
        return max(1, round(height / self.unit)), max(1, round(width / self.unit))

    def is_large(self, height: int, width: int) -> bool:
        """Whether an image of this height and width becomes tiles of `tile_size`, and not one image
        alone."""
        if self.encoder_patch_size is None or not self.do_image_splitting or self.max_tiles == 1:
            return False
        most = self.max_image_tokens * self.max_pixels_tolerance
        return math.prod(self._squares(height, width)) > most

    def tiles(self, height: int, width: int) -> tuple[int, int]:
        """The numbers of rows and of columns of the tiles of an image of this height and width, as
        `canvas` says. Of equally close shapes, it is the largest of which the image has more than
        half the pixels, or else the smallest, and of equal sizes the smallest, as in
        `transformers`."""
        of_tile = math.prod(self.tile)
        least, most = self.min_patches, self.max_patches
        if self.encoder_patch_size is not None:
            least, most = self.min_tiles, self.max_tiles
        each = range(1, most + 1)
        grids = sorted(
            (
                (rows, columns)
                for columns in each
                for rows in each[: most // columns]
                if rows * columns >= least
            ),
            key=math.prod,
        )
        if self.canvas != "closest_shape":
            return self._closest_size(grids, height, width)
        best, closest = (1, 1), math.inf
        for rows, columns in grids:
            apart = abs(width / height - columns / rows)
            fills = 2 * height * width > of_tile * rows * columns
            if apart < closest or (apart == closest and fills):
                best, closest = (rows, columns), apart
        return best

    def _closest_size(
        self, grids: Sequence[tuple[int, int]], height: int, width: int
    ) -> tuple[int, int]:
        """The first of these numbers of rows and of columns whose tiles an image of this height and
        width fits into best."""
        high, wide = self.tile
        factors = [min(rows * high / height, columns * wide / width) for rows, columns in grids]
        enlarging = [factor for factor in factors if factor >= 1]
        least = min(enlarging, default=max(factors))
        return grids[factors.index(max(factors) if self.resize_to_max_canvas else least)]

    def padded(self, height: int, width: int, grid: tuple[int, int]) -> tuple[int, int]:
        """The height and the width of an image of this one in tiles of so many rows and columns,
        with `canvas = "padded"`: it keeps its shape, and becomes no larger than a tile unless it is
        or `resize_to_max_canvas` says so."""
        most_high, most_wide = (n * side for n, side in zip(grid, self.tile, strict=True))
        if not self.resize_to_max_canvas:
            side = self.tile[0]
            most_high = min(max(height, side), most_high)
            most_wide = min(max(width, side), most_wide)
        by_width, by_height = most_wide / width, most_high / height
        if by_width < by_height:
            return max(min(math.floor(height * by_width), most_high), 1), most_wide
        return most_high, max(min(math.floor(width * by_height), most_wide), 1)

    @property
    def tile(self) -> tuple[int, int]:
        """The height and the width of a tile."""
        if self.encoder_patch_size is not None:
            return self.tile_size, self.tile_size
        assert self.size is not None  # `_check_tiles`
        assert self.size.sides is not None
        return self.size.sides

    @property
    def tiling(self) -> Tiling | None:
        """How an image is cut that becomes tiles of `image_grid_pinpoints`."""
        if self.image_grid_pinpoints is None:
            return None
        assert self.size is not None  # `_check_grids`
        side = self.size.shortest_edge or self.size.height
        assert side is not None
        grids = ((height // side, width // side) for height, width in self.image_grid_pinpoints)
        return Tiling(tuple(grids), side, 1)

    @property
    def becomes_tiles(self) -> bool:
        """Whether an image becomes tiles of `size`."""
        return self.canvas == "padded" or (self.crop_to_patches and self.max_patches > 1)

    @property
    def unit(self) -> int | None:
        """What the sides of images of any size are multiples of; None for images of one size."""
        if self.encoder_patch_size is not None:
            return self.encoder_patch_size * (self.downsample_factor or 1)
        if self.patch_size is None:
            return None
        return self.patch_size * (self.merge_size or self.pooling_kernel_size or 1)

    @property
    def square(self) -> int | None:
        """The side of the squares that an image becomes, of image processors that make such."""
        return None if self.max_image_size is None else self.max_image_size.longest_edge

    @property
    def output_size(self) -> tuple[int, int] | None:
        """The height and the width of all results; None if they depend on the image."""
        if self.square is not None:
            return self.square, self.square
        if self.tiling is not None:
            return self.tiling.tile, self.tiling.tile
        if self.do_center_crop and self.crop_size is not None:
            return self.crop_size.sides
        if self.size is None or self.unit is not None:
            return None
        return self.size.sides if self.do_resize or self.becomes_tiles else None


def _between(
    closest: tuple[int, int], height: int, width: int, unit: int, least: int, most: int
) -> tuple[int, int]:
    """The rows and columns of squares, with sides of `unit` pixels, of an image of this height and
    width: the `closest`, unless they have fewer pixels than `least` or more than `most`."""
    pixels = math.prod(closest) * unit**2
    if pixels > most:
        shrink = math.sqrt((height * width) / most)
        rows, columns = (max(1, math.floor(side / shrink / unit)) for side in (height, width))
        return rows, columns
    if pixels < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / unit), math.ceil(width * grow / unit)
    return closest


def _numbers_of_pixels(values: dict[str, Any]) -> dict[str, Any]:
    """Settings with the numbers of pixels that `size` states as settings of their own, of which
    those that are stated so count before; a `size` that says anything else as it is, to be
    refused."""
    size = values.get("size")
    if not isinstance(size, dict) or not size.keys() <= _NUMBERS_OF_PIXELS.keys():
        return values
    found = {_NUMBERS_OF_PIXELS[key]: n for key, n in size.items() if n is not None}
    return found | {key: value for key, value in values.items() if key != "size"}


def _size(value: object, *, square: bool) -> object:
    """A size as a table; anything else as it is, to be refused."""
    if type(value) is int:
        return {"height": value, "width": value} if square else {"shortest_edge": value}
    if isinstance(value, list) and len(value) == 2:
        return {"height": value[0], "width": value[1]}
    if isinstance(value, dict):
        return {key: one for key, one in value.items() if one is not None}
    return value
