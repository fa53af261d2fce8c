"""Positions as distances between query and key, inside attention: the `position` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, PositiveFloat, Size, Slot, contradiction
from zoo.layout import Layout, embedding, linear, vector
from zoo.only_with import stated
from zoo.slots import Norm, Position
from zoo_components.optional import SizeOrNone, number
from zoo_components.position import OfPatches

if TYPE_CHECKING:
    from zoo.position import PositionScheme


class HeadBias(Position):
    """What schemes have in common that add a bias of each head to the scores."""

    adds_bias: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.n_heads is None:
            raise ValueError(
                f"`{self.kind}` positions need a self-attention that states its n_heads"
            )
        return self


class Alibi(HeadBias):
    """Scores fall in proportion to the distance, with a different slope in each head (Press et al.
    2021, arXiv:2108.12409): -slope * |query - key| is added. The slopes of n heads are
    2**(-max_exponent * i / n) for i = 1 to n; if n is not a power of two, the first n of those for
    the next power of two, in the order 2nd, 4th, ..., 1st, 3rd, ...."""

    max_exponent: PositiveFloat = 8.0
    """The exponent m of the smallest slope, 2**-m."""
    scale: PositiveFloat = 1.0
    """The factor that multiplies the bias (1 / sqrt(head_dim) in Falcon)."""
    rounding: Literal["none", "bfloat16"] = "none"
    """Whether slopes, and slopes times the keys' positions, are rounded to bfloat16 (Falcon)."""

    def build(self) -> "PositionScheme":
        from zoo_components.modules.relative import AlibiPositions

        return AlibiPositions(
            n_heads=stated(self.n_heads),
            max_exponent=self.max_exponent,
            scale=self.scale,
            rounded=self.rounding == "bfloat16",
        )


class T5Buckets(HeadBias):
    """A learned bias of each head for each bucket of distances (Raffel et al. 2019,
    arXiv:1910.10683): half of the buckets hold one distance each, the others grow with its
    logarithm."""

    site: ClassVar[str] = "rel_bias"
    causal: Given[bool] = False
    n_buckets: Annotated[Size, Field(ge=2)] = 32
    """The number of buckets."""
    max_distance: Size = 128
    """The distance from which on all distances share one bucket."""
    bidirectional: bool = Field(default_factory=lambda data: not data["causal"])
    """Whether later keys have buckets of their own, half of all; otherwise they share the bucket of
    distance 0. True by default if the stack is not causal."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        one_way = self.n_buckets // 2 if self.bidirectional else self.n_buckets
        if one_way < 2 or (self.bidirectional and self.n_buckets % 2):
            raise contradiction(
                f"n_buckets = {self.n_buckets} cannot be halved for two directions with two "
                "buckets each; it must be even and at least 4",
                "n_buckets",
                "bidirectional",
            )
        if self.max_distance <= one_way // 2:
            raise contradiction(
                f"max_distance = {self.max_distance} must be more than the {one_way // 2} "
                "distances that have buckets of their own",
                "max_distance",
                "n_buckets",
            )
        return self

    def layout(self) -> Layout:
        return embedding(self.n_buckets, stated(self.n_heads))

    def build(self) -> "PositionScheme":
        from zoo_components.modules.relative import T5BucketPositions

        return T5BucketPositions(
            n_heads=stated(self.n_heads),
            n_buckets=self.n_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )


class Fire(HeadBias):
    """A learned function of the distance, relative to how much a query can see (FIRE: Li et al.
    2023, arXiv:2310.04418): a network with one hidden layer and ReLU turns
    psi(|query - key|) / psi(max(L, query)) into a bias of each head, with psi(x) = log(|c x| + 1)
    and L = |length_factor * threshold|, where c and length_factor are learned. However long a text
    is, what the network reads of the keys before a query is between 0 and 1. The paper gives each
    layer a network of its own, as `self_position` in a block does, or all layers one, as `position`
    does (FIRE-S)."""

    site: ClassVar[str] = "rel_bias"
    d_hidden: Size = 32
    """The number of hidden units of the network."""
    c: PositiveFloat = 0.1
    """The initial value of c."""
    threshold: PositiveFloat = 512.0
    """The initial value of L, in positions: queries before it have the scale of one at L."""

    def layout(self) -> Layout:
        return Layout(
            {
                "c": vector(1, value=self.c),
                "length_factor": vector(1, value=1.0),
                "up_proj": linear(1, self.d_hidden),
                "down_proj": linear(self.d_hidden, stated(self.n_heads)),
            }
        )

    def build(self) -> "PositionScheme":
        from zoo_components.modules.relative import FirePositions

        return FirePositions(
            n_heads=stated(self.n_heads), d_hidden=self.d_hidden, threshold=self.threshold
        )


class GridBias(OfPatches, HeadBias):
    """A learned bias of each head for each distance between two patches of an image, in rows and in
    columns, and three more: from the class token, to it, and from it to itself (BEiT: Bao et al.
    2021, arXiv:2106.08254, after Liu et al. 2021, arXiv:2103.14030, equation 4)."""

    site: ClassVar[str] = "rel_bias"

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_class_token("is a bias")
        return self

    def layout(self) -> Layout:
        _, rows, columns = stated(self.grid)
        return embedding((2 * rows - 1) * (2 * columns - 1) + 3, stated(self.n_heads))

    def build(self) -> "PositionScheme":
        from zoo_components.modules.relative import GridBiasPositions

        _, rows, columns = stated(self.grid)
        return GridBiasPositions(n_heads=stated(self.n_heads), rows=rows, columns=columns)


class DisentangledPosition(Position):
    """A learned vector for each distance from -span to span - 1, which `disentangled` attention
    matches with queries and keys (He et al. 2020, arXiv:2006.03654)."""

    site: ClassVar[str] = "rel_embed"
    max_distance: Annotated[Size, Field(ge=2)] = 512
    """The distance from which on all distances share one vector; with buckets, the end of their
    range, otherwise the span."""
    n_buckets: SizeOrNone = "none"
    """The number of buckets in each direction, which is then the span: half of them hold one
    distance each, the others grow with its logarithm (DeBERTa V2: 256). It is at least 4 and less
    than 2 * (max_distance - 1)."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_model")]
    """A norm that is applied to the vectors."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        n_buckets = number(self.n_buckets)
        if n_buckets is not None and not 4 <= n_buckets < 2 * (self.max_distance - 1):
            raise contradiction(
                f"n_buckets = {n_buckets} must be at least 4 and less than "
                f"2 * (max_distance - 1) = {2 * (self.max_distance - 1)}",
                "n_buckets",
                "max_distance",
            )
        return self

    @property
    def span(self) -> int:
        """The number of distances, or buckets, with vectors of their own in each direction."""
        return number(self.n_buckets) or self.max_distance

    def layout(self) -> Layout:
        return embedding(2 * self.span, self.d_model).with_parts(norm=self.norm.layout())

    def build(self) -> "PositionScheme":
        from zoo_components.modules.relative import DisentangledPositions

        return DisentangledPositions(
            d_model=self.d_model,
            max_distance=self.max_distance,
            n_buckets=number(self.n_buckets),
            norm=self.norm.build(),
        )
