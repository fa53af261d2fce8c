"""Rotary positions and the ways to stretch them to longer sequences: the `position` slot."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Size, contradiction
from zoo.layout import Layout, Tensor
from zoo.only_with import stated
from zoo.slots import Position
from zoo_components.position import OfPatches

if TYPE_CHECKING:
    from zoo.position import PositionScheme
    from zoo_components.modules.frequencies import Frequencies

Scheme = TypeVar("Scheme", bound="PositionScheme")


class Rotary(Position):
    """Queries and keys are rotated by angles that grow with the position (Su et al. 2021,
    arXiv:2104.09864): the k-th of the pairs in `width` rotated elements by
    position / base**(2k / width)."""

    rotates: ClassVar[bool] = True
    base: Annotated[PositiveFloat, Field(gt=1.0)] = 10000.0
    """The longest wavelength is about 2 pi times this; `rope_theta` in many configurations."""
    fraction: PositiveFloat = Field(default=1.0, le=1.0)
    """The leading share of each head that is rotated."""
    pairs: Literal["half", "interleaved"] = "half"
    """Which elements form a pair: k and k + width / 2, or 2k and 2k + 1."""
    direction: Literal["counterclockwise", "clockwise"] = "counterclockwise"
    """The direction in which pairs are rotated as positions grow; clockwise in nanochat."""

    @property
    def rotated_width(self) -> int:
        """The number of elements of each head that form pairs."""
        return int(stated(self.head_dim) * self.fraction)

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.head_dim is None:
            raise ValueError("rotary positions need a self-attention that states its head_dim")
        if self.rotated_width % 2 or self.rotated_width == 0:
            raise contradiction(
                "rotary positions turn pairs: head_dim * fraction = "
                f"{self.rotated_width} is not even",
                "fraction",
                "head_dim",
                "n_heads",
                "d_model",
            )
        return self

    @property
    def magnitude(self) -> float:
        """The factor that multiplies queries and keys."""
        return 1.0

    def frequencies(self) -> "Frequencies":
        """The angle by which each pair is rotated from one position to the next."""
        from zoo_components.modules.frequencies import Frequencies

        return Frequencies(width=self.rotated_width, base=self.base)

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import RotaryPositions

        return self._module(RotaryPositions)

    def _module(self, cls: "Callable[..., Scheme]") -> "Scheme":
        from zoo_components.modules.rotary import Pairs

        pairs = Pairs(
            width=self.rotated_width,
            interleaved=self.pairs == "interleaved",
            clockwise=self.direction == "clockwise",
            magnitude=self.magnitude,
        )
        return cls(pairs, self.frequencies())


class OfRowsAndColumns(Rotary):
    """What rotary schemes have in common in which rows and columns turn equally many pairs."""

    @model_validator(mode="after")
    def _check_quarters(self) -> Self:
        if self.rotated_width % 4:
            raise contradiction(
                "rows and columns turn equally many pairs: head_dim * fraction = "
                f"{self.rotated_width} cannot be divided by 4",
                "fraction",
                "head_dim",
                "n_heads",
                "d_model",
            )
        return self

    def frequencies(self) -> "Frequencies":
        """Those of the pairs of a half, base**(-k / n) for the k-th of n."""
        from zoo_components.modules.frequencies import Frequencies

        return Frequencies(width=self.rotated_width // 2, base=self.base)


class GridRotary(OfPatches, OfRowsAndColumns):
    """Queries and keys of the patches of an image are rotated by angles that grow with the row of
    the patch, in one half of the pairs, and with its column, in the other half (DINOv3: Simeoni et
    al. 2025, arXiv:2508.10104). Of the n pairs of a half, the k-th is rotated by
    2 pi c / base**(k / n), with c from -1 to 1, the coordinate of the patch's centre. What comes
    before the patches, such as the class token, is not rotated."""

    base: Annotated[PositiveFloat, Field(gt=1.0)] = 100.0
    """The longest wavelength, in halves of the image, is about this; `rope_theta` in
    configurations."""

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import GridRotaryPositions

        return self._module(partial(GridRotaryPositions, grid=stated(self.grid)))


class ClassGridRotary(GridRotary):
    """Queries and keys of the patches of an image are rotated by angles that grow with the row of
    the patch, in one half of the pairs, and with its column, in the other half, those of the class
    token by learned angles (MLCD: An et al. 2024, arXiv:2407.17331). Of the n pairs of a half, the
    k-th is rotated by c / base**(k / n), where c is the row or the column, counted from 0."""

    site: ClassVar[str] = "rotary"
    base: Annotated[PositiveFloat, Field(gt=1.0)] = 10000.0
    """The longest wavelength is about 2 pi times this, in patches; `rope_theta` in
    configurations."""

    @model_validator(mode="after")
    def _check_class_token(self) -> Self:
        self.check_class_token("are learned angles")
        return self

    def layout(self) -> Layout:
        n_pairs = self.rotated_width // 2
        angles = Tensor((n_pairs,), "embedding", fan_in=1, fan_out=n_pairs)
        return Layout({"class_angles": angles})

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import ClassGridRotaryPositions

        scheme = self._module(partial(ClassGridRotaryPositions, grid=stated(self.grid)))
        scheme.add_class_angles()
        return scheme


class CountedGridRotary(GridRotary):
    """Queries and keys of the patches of an image are rotated by angles that grow with the column
    of the patch, in one half of the pairs, and with its row, in the other half (Llama 4). Of the n
    pairs of a half, the k-th is rotated by c / base**(k / n), where c is the column or the row,
    counted from 1. What comes before the patches, such as the class token, is not rotated."""

    base: Annotated[PositiveFloat, Field(gt=1.0)] = 10000.0
    """The longest wavelength is about 2 pi times this, in patches; `rope_theta` in
    configurations."""

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import CountedGridRotaryPositions

        return self._module(partial(CountedGridRotaryPositions, grid=stated(self.grid)))


class AxialRotary(OfRowsAndColumns):
    """Queries and keys of the patches of an image of any size are rotated by angles that grow with
    the row of the patch, in one half of the pairs, and with its column, in the other half
    (Qwen2-VL: Wang et al. 2024, arXiv:2409.12191, section 2.1). Of the n pairs of a half, the k-th
    is rotated by c / base**(k / n), where c is the row or the column, counted from 0. Of a token
    without a row and a column, both are the position."""

    axes: ClassVar[int] = 2
    base: Annotated[PositiveFloat, Field(gt=1.0)] = 10000.0
    """The longest wavelength is about 2 pi times this, in patches."""

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import AxialRotaryPositions

        return self._module(AxialRotaryPositions)


class AlternatingAxialRotary(AxialRotary):
    """Queries and keys of the patches of an image of any size are rotated by angles that grow with
    the row of the patch, in one half of the pairs, and with its column, in the other half, of which
    each takes every second frequency (Pixtral: Agrawal et al. 2024, arXiv:2410.07073, section 2.1).
    Of the n pairs of a half, the k-th is rotated by row / base**(2k / 2n) or by
    column / base**((2k + 1) / 2n), both counted from 0. Of a token without a row and a column, both
    are the position."""

    def frequencies(self) -> "Frequencies":
        """The angle by which each pair is rotated, those of rows and of columns by turns."""
        from zoo_components.modules.frequencies import Frequencies

        return Frequencies(width=self.rotated_width, base=self.base)

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import AlternatingAxialRotaryPositions

        return self._module(AlternatingAxialRotaryPositions)


class HalvesAxialRotary(AxialRotary):
    """Queries and keys of the patches of an image of any size are rotated by angles that grow with
    the column of the patch, in the first half of the elements of a head, and with its row, in the
    second half, each of which has pairs of its own (Gemma 4). Of the n pairs of a half, the k-th is
    rotated by c / base**(k / n), where c is the column or the row, counted from 0. Of a token
    without a row and a column, both are the position."""

    base: Annotated[PositiveFloat, Field(gt=1.0)] = 100.0
    """The longest wavelength is about 2 pi times this, in patches."""
    pairs: Literal["half", "interleaved"] = "half"
    """Which elements of a half form a pair: k and k + width / 4, or 2k and 2k + 1."""

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import HalvesAxialRotaryPositions

        return self._module(HalvesAxialRotaryPositions)


class MultimodalRotary(Rotary):
    """Rotary positions of texts with images in them (M-RoPE; Qwen2-VL: Wang et al. 2024,
    arXiv:2409.12191, section 2.1): some pairs are rotated by the time of a token, some by its row
    and some by its column. All of an image has one time, and its rows and columns are counted from
    there; of a token of text, all three are its position."""

    axes: ClassVar[int] = 3
    example: ClassVar[Mapping[str, Any]] = {"sections": [1, 1, 2]}
    sections: tuple[Size, Size, Size]
    """The number of pairs that the time rotates, which are the first, the row, and the column;
    `mrope_section` in configurations."""

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        n_pairs = self.rotated_width // 2
        if sum(self.sections) != n_pairs:
            raise contradiction(
                f"`sections` has {sum(self.sections)} pairs for {n_pairs} rotated ones",
                "sections",
                "fraction",
                "head_dim",
            )
        return self

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import MultimodalRotaryPositions

        return self._module(partial(MultimodalRotaryPositions, sections=self.sections))


class InterleavedMultimodalRotary(MultimodalRotary):
    """Rotary positions of texts with images in them (interleaved M-RoPE; Qwen3-VL: Bai et al. 2025,
    arXiv:2511.21631, section 2): pairs are rotated in turn by the time of a token, by its row and
    by its column, so that each has fast pairs and slow ones. Where the row or the column has had
    all of its pairs, the time rotates the pair. All of an image has one time, and its rows and
    columns are counted from there; of a token of text, all three are its position."""

    example: ClassVar[Mapping[str, Any]] = {"sections": [2, 1, 1]}
    sections: tuple[Size, Size, Size]
    """The number of pairs that the time, the row and the column rotate; `mrope_section` in
    configurations."""

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        _, rows, columns = self.sections
        n_pairs = sum(self.sections)
        if 3 * rows > n_pairs + 1 or 3 * columns > n_pairs:
            raise contradiction(
                f"every third of {n_pairs} pairs is that of the row, and the one after it that of "
                f"the column: there are not the {rows} and {columns} that `sections` says",
                "sections",
            )
        return self

    def build(self) -> "PositionScheme":
        from zoo_components.modules.rotary import InterleavedMultimodalRotaryPositions

        cls = InterleavedMultimodalRotaryPositions
        return self._module(partial(cls, sections=self.sections))


class LinearRotary(Rotary):
    """Rotary positions with all positions divided by `factor` (Chen et al. 2023,
    arXiv:2306.15595)."""

    factor: PositiveFloat
    """The factor by which sequences become longer."""

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.frequencies import LinearFrequencies

        return LinearFrequencies(width=self.rotated_width, base=self.base, factor=self.factor)


class ProportionalRotary(Rotary):
    """Rotary positions whose slow pairs are not rotated (Gemma 4): the whole head is divided into
    pairs, and only the first, fastest `fraction` of them is rotated."""

    factor: PositiveFloat = 1.0
    """The divisor of all positions."""

    @property
    def rotated_width(self) -> int:
        """The number of elements of each head that form pairs: all of them."""
        return stated(self.head_dim)

    @property
    def n_turned(self) -> int:
        """The number of pairs that are rotated."""
        return int(self.rotated_width * self.fraction // 2)

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.frequencies import ProportionalFrequencies

        return ProportionalFrequencies(
            width=self.rotated_width,
            base=self.base,
            n_turned=self.n_turned,
            factor=self.factor,
        )


class Stretched(Rotary):
    """Rotary positions of a model for longer sequences than those of its original training."""

    factor: PositiveFloat
    """The factor by which sequences become longer."""
    original_length: Size
    """The number of tokens in the longest sequence of the original training."""


class DynamicRotary(Stretched):
    """Rotary positions whose base grows with a sequence longer than those of the training ("dynamic
    NTK", compared by Peng et al. 2023, arXiv:2309.00071): for length L past the original length L0,
    base * (factor * L / L0 - factor + 1)**(width / (width - 2))."""

    @model_validator(mode="after")
    def _check_exponent(self) -> Self:
        if self.rotated_width == 2:
            raise contradiction(
                "one rotated pair has no base that could grow: head_dim * fraction must be 4 or "
                "more",
                "fraction",
                "head_dim",
            )
        return self

    def changes(self, before: int, after: int) -> bool:
        return after > max(before, self.original_length)

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.frequencies import DynamicFrequencies

        return DynamicFrequencies(
            width=self.rotated_width,
            base=self.base,
            factor=self.factor,
            original_length=self.original_length,
        )


class YarnRotary(Stretched):
    """Rotary positions by YaRN (Peng et al. 2023, arXiv:2309.00071): pairs that make many turns
    within the original length keep their frequency, pairs that make less than one are slowed by
    `factor`, those between by a share of it; queries and keys are scaled too."""

    beta_fast: PositiveFloat = 32.0
    """Pairs with more turns than this in the original length stay as they are."""
    beta_slow: PositiveFloat = 1.0
    """Pairs with fewer turns than this are slowed by all of `factor`."""
    truncate: bool = True
    """Whether the ends of the range of pairs between the two are rounded outwards to whole
    pairs."""
    attention_factor: PositiveFloat = Field(
        default_factory=lambda data: 0.1 * math.log(max(1.0, data["factor"])) + 1.0
    )
    """The factor that multiplies queries and keys; 0.1 ln(factor) + 1 by default."""

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise contradiction(
                f"beta_fast = {self.beta_fast} must be more than beta_slow = {self.beta_slow}",
                "beta_fast",
                "beta_slow",
            )
        return self

    @property
    def magnitude(self) -> float:
        """The factor that multiplies queries and keys."""
        return self.attention_factor

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.frequencies import YarnFrequencies

        return YarnFrequencies(
            width=self.rotated_width,
            base=self.base,
            factor=self.factor,
            original_length=self.original_length,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            truncate=self.truncate,
        )


Factors = tuple[PositiveFloat, ...]


class LongRotary(Stretched):
    """Rotary positions by LongRoPE (Ding et al. 2024, arXiv:2402.13753): each pair is slowed by a
    factor of its own, which was found by search, with other factors for sequences longer than the
    original length. Queries and keys are scaled too."""

    example: ClassVar[Mapping[str, Any]] = {
        "factor": 2.0,
        "original_length": 4,
        "short_factors": [1.0, 1.5, 2.0, 2.5],
        "long_factors": [1.0, 2.0, 4.0, 8.0],
    }
    original_length: Annotated[Size, Field(ge=2)]
    short_factors: Factors
    """The divisor of each pair's frequency in a sequence of at most the original length."""
    long_factors: Factors
    """The divisor of each pair's frequency in a longer sequence."""
    attention_factor: PositiveFloat = Field(
        default_factory=lambda data: math.sqrt(
            1 + math.log(max(1.0, data["factor"])) / math.log(data["original_length"])
        )
    )
    """The factor that multiplies queries and keys; sqrt(1 + ln(factor) / ln(original_length)) by
    default."""

    @model_validator(mode="after")
    def _check_factors(self) -> Self:
        for name in ("short_factors", "long_factors"):
            n_factors = len(getattr(self, name))
            if n_factors != self.rotated_width // 2:
                raise contradiction(
                    f"`{name}` has {n_factors} factors for {self.rotated_width // 2} rotated pairs",
                    name,
                    "fraction",
                    "head_dim",
                )
        return self

    @property
    def magnitude(self) -> float:
        """The factor that multiplies queries and keys."""
        return self.attention_factor

    def changes(self, before: int, after: int) -> bool:
        return before <= self.original_length < after

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.constant import Constant
        from zoo_components.modules.frequencies import LongFrequencies

        return LongFrequencies(
            width=self.rotated_width,
            base=self.base,
            original_length=self.original_length,
            short_factors=Constant(self.short_factors),
            long_factors=Constant(self.long_factors),
        )


class Llama3Rotary(Stretched):
    """Rotary positions scaled as in Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783): pairs of
    a short wavelength keep their frequency, those of a long one are slowed by `factor`, those
    between by a share of it."""

    low_freq_factor: PositiveFloat = 1.0
    """A pair that turns less often than this in the original length is slowed by all of
    `factor`."""
    high_freq_factor: PositiveFloat = 4.0
    """A pair that turns more often than this in the original length stays as it is. With that of
    `low_freq_factor`, there are no pairs between (Llama 4 Scout)."""

    @model_validator(mode="after")
    def _check_factors(self) -> Self:
        if self.low_freq_factor > self.high_freq_factor:
            raise contradiction(
                f"low_freq_factor = {self.low_freq_factor} must not be more than "
                f"high_freq_factor = {self.high_freq_factor}",
                "low_freq_factor",
                "high_freq_factor",
            )
        return self

    def frequencies(self) -> "Frequencies":
        from zoo_components.modules.frequencies import Llama3Frequencies

        return Llama3Frequencies(
            width=self.rotated_width,
            base=self.base,
            factor=self.factor,
            original_length=self.original_length,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
        )


class StoredRotary(Position):
    """Rotary positions whose frequencies are a tensor of the weights, and not computed: those of
    ESM-2 were rounded to float16 in its training. They are 1 until weights are loaded. Elements k
    and k + head_dim / 2 are a pair."""

    rotates: ClassVar[bool] = True
    site: ClassVar[str] = "rotary"

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.head_dim is None or self.head_dim % 2:
            raise ValueError("rotary positions need a self-attention that states an even head_dim")
        return self

    def layout(self) -> Layout:
        pairs = stated(self.head_dim) // 2
        weight = Tensor((pairs,), "constant", value=1.0, buffer=True)
        return Layout({"frequencies": Layout({"weight": weight})})

    def build(self) -> "PositionScheme":
        from zoo_components.modules.frequencies import StoredFrequencies
        from zoo_components.modules.rotary import Pairs, RotaryPositions

        width = stated(self.head_dim)
        return RotaryPositions(Pairs(width), StoredFrequencies(width=width))
