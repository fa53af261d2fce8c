"""Position schemes: the `position` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Shared, Size, contradiction
from zoo.layout import Layout, embedding
from zoo.slots import Position

if TYPE_CHECKING:
    from torch import nn


class NoPosition(Position):
    """No positions: what is left is the causal mask, if there is one (Haviv et al. 2022,
    arXiv:2203.16634), or a set."""

    def build(self) -> nn.Module:
        from zoo.position import PositionScheme

        return PositionScheme()


class Sinusoidal(Position):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5):
    the angles are position / base**(2k / d_model)."""

    embedded: ClassVar[bool] = True
    max_length: Shared[Size] = 5000
    """How many positions there are."""
    base: PositiveFloat = 10000.0
    """The longest wavelength is 2 pi times this."""
    arrangement: Literal["interleaved", "halves"] = "interleaved"
    """Where sine and cosine stand: in turn (sin, cos, sin, ...), or all sines first."""
    exponent: Literal["d_model", "half_minus_one"] = "d_model"
    """The exponent of the k-th angle: 2k / d_model, or k / (d_model / 2 - 1) as in tensor2tensor."""

    @model_validator(mode="after")
    def _check(self) -> Sinusoidal:
        if self.exponent == "half_minus_one" and self.d_model < 4:
            raise contradiction(
                f"`exponent = \"half_minus_one\"` divides by d_model / 2 - 1, which is 0 or less for "
                f"d_model = {self.d_model}",
                "exponent",
                "d_model",
            )
        return self

    def build(self) -> nn.Module:
        from zoo_components.modules.position import SinusoidalPositions

        return SinusoidalPositions(
            d_model=self.d_model,
            max_length=self.max_length,
            base=self.base,
            interleaved=self.arrangement == "interleaved",
            half_minus_one=self.exponent == "half_minus_one",
        )


class Learned(Position):
    """A learned vector for each position, added to the embeddings (Gehring et al. 2017,
    arXiv:1705.03122)."""

    embedded: ClassVar[bool] = True
    max_length: Shared[Size]
    """How many positions there are."""
    offset: int = Field(default=0, ge=0)
    """Rows of the table before the first position (2 in BART and OPT)."""

    def layout(self) -> Layout:
        return embedding(self.max_length + self.offset, self.d_model)

    def build(self) -> nn.Module:
        from zoo_components.modules.position import LearnedPositions

        return LearnedPositions(
            d_model=self.d_model, max_length=self.max_length, offset=self.offset
        )


class Rotary(Position):
    """Queries and keys are rotated by angles that grow with the position (Su et al. 2021,
    arXiv:2104.09864): the k-th pair by position / base**(2k / width)."""

    base: PositiveFloat = 10000.0
    """The longest wavelength is about 2 pi times this; `rope_theta` in many configurations."""
    fraction: PositiveFloat = Field(default=1.0, le=1.0)
    """The leading share of each head that is rotated."""
    pairs: Literal["half", "interleaved"] = "half"
    """Which elements form a pair: k and k + width / 2, or 2k and 2k + 1."""

    @property
    def width(self) -> int:
        """Elements of each head that are rotated."""
        return int((self.head_dim or 0) * self.fraction)

    @model_validator(mode="after")
    def _check(self) -> Rotary:
        if self.head_dim is None:
            raise ValueError("rotary positions need a self-attention that states its head_dim")
        if self.width % 2 or self.width == 0:
            raise contradiction(
                f"rotary positions turn pairs: head_dim * fraction = {self.width} is not even",
                "fraction",
                "head_dim",
                "n_heads",
                "d_model",
            )
        return self

    def build(self) -> nn.Module:
        from zoo_components.modules.position import RotaryPositions

        return RotaryPositions(
            width=self.width, base=self.base, interleaved=self.pairs == "interleaved"
        )
