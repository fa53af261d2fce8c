"""A decoder whose text has images in it that are read as a whole and in tiles, in the `builder`
slot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Size, contradiction
from zoo.layout import Layout, Tensor
from zoo.only_with import stated
from zoo.purpose import InsertedImages, Tiling
from zoo_components.image_text import ImageTextDecoder
from zoo_components.optional import SizeOrNone, number

if TYPE_CHECKING:
    from zoo.transformer import Transformer


class TiledImageTextDecoder(ImageTextDecoder):
    """The builder `image_text_decoder`, which reads a large image as a whole and in tiles (AnyRes;
    LLaVA-NeXT: Liu et al. 2024). The states of the whole stand in the text first, and then, row by
    row, those of all tiles put together, without what surrounds the image in them. A learned vector
    follows each row; without tiles, it follows the whole."""

    example: ClassVar[Mapping[str, Any]] = {
        **ImageTextDecoder.example,
        "grids": [[1, 1], [1, 2], [2, 1]],
    }

    image_states: ClassVar[Literal["patches"]] = "patches"  # type: ignore[misc]  # of a square
    bidirectional: ClassVar[Literal["none"]] = "none"  # type: ignore[misc]
    grids: Annotated[tuple[tuple[Size, Size], ...], Field(min_length=1)]
    """The numbers of rows and of columns of tiles into which an image may be cut: it becomes those
    that show most of it, and of such the smallest."""
    most_tiles: SizeOrNone = "none"
    """Of how many tiles the states are the most that stand in a text: more are shrunk to about as
    many, by bilinear interpolation (LLaVA-OneVision: Li et al. 2024, arXiv:2408.03326)."""

    @model_validator(mode="after")
    def _check_tiles(self) -> Self:
        if self.image.embedding.grid is None:
            raise contradiction(
                f"the embedding `{self.image.embedding.kind}` makes no rows and columns of patches "
                "that tiles could have",
                "image.embedding.kind",
            )
        return self

    @property
    def tiling(self) -> Tiling:
        """How images are cut."""
        _, rows, _ = stated(self.image.embedding.grid)
        side = rows // self.projector.merge
        tile = stated(self.image.embedding.image_shape)[1]
        return Tiling(self.grids, tile, side, number(self.most_tiles))

    @property
    def _inserted_images(self) -> InsertedImages:
        whole, tiling = super()._inserted_images, self.tiling
        return whole._replace(n_states=tiling.states_of(tiling.tile, tiling.tile, 1), tiling=tiling)

    def layout(self) -> Layout:
        whole = super().layout()
        width = self.decoder.embedding.position_width
        newline = Tensor((width,), "embedding", fan_in=1, fan_out=width)
        image, projector, *others = whole.parts.items()
        parts = dict([image, projector, ("newline", newline), *others])
        grids = ", ".join(f"{rows} x {columns}" for rows, columns in self.grids)
        most = "" if self.most_tiles == "none" else f", most_tiles {self.most_tiles}"
        return replace(whole, parts=parts, label=f"grids {grids}{most}")

    def build(self) -> "Transformer":
        from zoo_components.modules.tiled_images import TiledImageTextDecoder as Module
        from zoo_components.modules.tying import tie

        how, width = self._inserted_images, self.decoder.embedding.position_width
        model = Module(**self._parts(), tiling=self.tiling, shape=how.shape, width=width)
        return tie(model, self.ties())
