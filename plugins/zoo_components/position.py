"""Positions that are added to the embeddings, or no positions: the `position` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Shared, Size, contradiction
from zoo.layout import Layout, embedding
from zoo.only_with import UNSTATED, NotWith, stated
from zoo.slots import Position

if TYPE_CHECKING:
    from zoo.position import PositionScheme


class NoPosition(Position):
    """No positions: only a causal mask, if there is one, distinguishes them (Haviv et al. 2022,
    arXiv:2203.16634); without it, the input is treated as a set."""

    absent: ClassVar[bool] = True

    def build(self) -> "PositionScheme":
        from zoo.position import PositionScheme

        return PositionScheme()


class Sinusoidal(Position):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5):
    the angles are position / base**(2k / d_model)."""

    embedded: ClassVar[bool] = True
    count_positions: Given[Literal["all", "unpadded", "unmasked"]] = "all"
    max_length: Shared[Size] = 5000
    """The number of positions."""
    base: PositiveFloat = 10000.0
    """The longest wavelength, divided by 2 pi."""
    arrangement: Literal["interleaved", "halves"] = "interleaved"
    """The order of sines and cosines: alternating (sin, cos, sin, ...), or all sines first."""
    exponent: Literal["d_model", "half_minus_one"] = "d_model"
    """The exponent of the k-th angle: 2k / d_model, or k / (d_model / 2 - 1) (tensor2tensor)."""
    offset: int = Field(default=0, ge=0)
    """A number that is added to each position (2 in M2M-100)."""
    zero_padding: Annotated[bool | None, NotWith("count_positions", "all", default=False)] = (
        UNSTATED
    )
    """Whether tokens that the stack's `count_positions` does not count get the zero vector, as in
    fairseq."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.exponent == "half_minus_one" and self.width < 4:
            raise contradiction(
                f'`exponent = "half_minus_one"` divides by d_model / 2 - 1, which is 0 or less for '
                f"d_model = {self.width}",
                "exponent",
                "d_model",
            )
        return self

    @property
    def longest(self) -> int:
        return self.max_length

    def layout(self) -> Layout:
        return Layout(
            label=f"{self.max_length} x {self.width}, computed",
            computed=(self.max_length + self.offset) * self.width,
        )

    def build(self) -> "PositionScheme":
        from zoo_components.modules.position import SinusoidalPositions

        return SinusoidalPositions(
            width=self.width,
            max_length=self.max_length,
            base=self.base,
            interleaved=self.arrangement == "interleaved",
            half_minus_one=self.exponent == "half_minus_one",
            offset=self.offset,
            zero_padding=bool(self.zero_padding),
        )


class OfPatches(Position):
    """What schemes have in common that are of the places of the patches of an image."""

    @model_validator(mode="after")
    def _check_patches(self) -> Self:
        if self.grid is None:
            raise ValueError(
                "these are positions of the patches of an image: choose an `embedding` of patches"
            )
        return self

    @property
    def longest(self) -> int:
        n_before, rows, columns = stated(self.grid)
        return n_before + rows * columns

    def check_class_token(self, what: str) -> None:
        """Raise a contradiction unless one vector comes before the patches, the class token, for
        which there is `what`."""
        if (n_before := stated(self.grid)[0]) != 1:
            raise contradiction(
                f"there {what} for one vector before the patches, the class token, and here are "
                f"{n_before}",
                "class_token",
                "distillation_token",
                "n_registers",
            )


class GridSinusoidal(OfPatches):
    """Fixed sines and cosines of the place of each patch of an image, added to the embeddings: half
    of the width is of its column and the other half of its row, each all sines and then all cosines
    of the number of the column or row over base**(4k / d_model) (MAE: He et al. 2021,
    arXiv:2111.06377). What comes before the patches, such as the class token, gets none."""

    embedded: ClassVar[bool] = True
    base: PositiveFloat = 10000.0
    """The longest wavelength, in patches, divided by 2 pi."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % 2:
            raise contradiction(
                f"rows and columns have half of d_model = {self.width} each: it must be even",
                "d_model",
            )
        return self

    @property
    def longest(self) -> int:
        return self.n_with_positions or super().longest

    def layout(self) -> Layout:
        _, rows, columns = stated(self.grid)
        return Layout(
            label=f"{columns} x {rows} x {self.width}, computed",
            computed=self.longest * self.width,
        )

    def build(self) -> "PositionScheme":
        from zoo_components.modules.position import GridSinusoids

        _, rows, columns = stated(self.grid)
        return GridSinusoids(
            width=self.width,
            n_before=self.longest - rows * columns,
            grid=(rows, columns),
            base=self.base,
        )


class Learned(Position):
    """A learned vector for each position, added to the embeddings (Gehring et al. 2017,
    arXiv:1705.03122)."""

    embedded: ClassVar[bool] = True
    max_length: Shared[Size]
    """The number of positions."""
    offset: int = Field(default=0, ge=0)
    """The number of rows of the table before that of the first position (2 in RoBERTa, BART and
    OPT)."""

    @property
    def longest(self) -> int:
        return self.max_length

    def layout(self) -> Layout:
        return embedding(self.max_length + self.offset, self.width)

    def build(self) -> "PositionScheme":
        from zoo_components.modules.position import LearnedPositions

        return LearnedPositions(width=self.width, max_length=self.max_length, offset=self.offset)


class LearnedPatches(OfPatches):
    """A learned vector for each patch of an image and one for the class token, added to the
    embeddings (ViT: Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1). In the table, that of
    the class token is the last (Llama 4)."""

    embedded: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_class_token(self) -> Self:
        self.check_class_token("is a row")
        return self

    def layout(self) -> Layout:
        return embedding(self.longest, self.width)

    def build(self) -> "PositionScheme":
        from zoo_components.modules.position import LearnedPatches

        return LearnedPatches(width=self.width, max_length=self.longest, offset=0)
