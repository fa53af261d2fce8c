"""The input of a stack: the `embedding` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import (
    Given,
    PositiveFloat,
    Probability,
    Shared,
    Size,
    Slot,
    contradiction,
    missing_dimension,
)
from zoo.layout import BY_VOCABULARY, Layout, embedding, linear
from zoo.only_with import UNSTATED, OnlyWith, stated
from zoo.slots import Embedding, Norm

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class TokenEmbedding(Embedding):
    """A learned vector for each token: dropout(norm(scale * table[ids] + positions)) (Vaswani et
    al. 2017, section 3.4)."""

    takes_inserted: ClassVar[bool] = True
    sum_norm: ClassVar[str | None] = "norm"
    scale: PositiveFloat | Literal["sqrt_d_model", "sqrt_d_model_rounded"] = 1.0
    """The factor that multiplies the token vectors before anything is added; with
    `sqrt_d_model_rounded` it is sqrt(d_model) rounded to the model's dtype (Gemma)."""
    d_embed: Size = Field(default_factory=lambda data: data["d_model"])
    """The width of the table; where it is not d_model, the table is one factor of two (Lan et al.
    2019, arXiv:1909.11942)."""
    projection: Literal["none", "before_positions", "after_norm"] = Field(
        default_factory=lambda data: "none" if data["d_embed"] == data["d_model"] else "after_norm"
    )
    """Where the other factor, a linear map to d_model, is applied: before anything is added to the
    token vectors (OPT-350m), or with `after_norm` to what all else gives (ALBERT, ELECTRA)."""
    projection_bias: Annotated[
        bool | None, OnlyWith("projection", "before_positions", "after_norm", default=True)
    ] = UNSTATED
    """With a projection: whether it has a bias."""
    n_types: int = Field(default=0, ge=0)
    """The number of token types, each with a learned vector that is added (Devlin et al. 2018,
    arXiv:1810.04805: the two segments); 0 for none."""
    inner_width: Given[int] = Field(
        default_factory=lambda data: data[
            "d_embed" if data["projection"] == "after_norm" else "d_model"
        ]
    )
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="inner_width")]
    """A norm after the sum (as in BERT)."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the norm and the sum."""
    masked_tokens: Literal["kept", "zeroed"] = "kept"
    """Whether the vectors of padding and of masked tokens are set to 0 before the dropout (XLM,
    DeBERTa, ESM) or kept."""
    token_dropout: Probability = 0.0
    """The share m of tokens that were replaced by `mask_id` in training (0.12 in ESM-2: Lin et al.
    2022). If it is not 0, mask tokens have the vector 0, and the others are multiplied by
    (1 - m) / (1 - the share of mask tokens in the sequence)."""
    mask_id: int | None = Field(default=None, ge=0)
    """The id of the mask token, for `token_dropout`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vocab is None:
            raise missing_dimension("vocab")
        if self.projection == "none" and self.d_embed != self.d_model:
            raise contradiction(
                f"vectors of d_embed = {self.d_embed} need a projection to "
                f"d_model = {self.d_model}",
                "projection",
                "d_embed",
                "d_model",
            )
        if (self.token_dropout > 0) != (self.mask_id is not None):
            raise contradiction(
                "`token_dropout` and `mask_id` go together", "token_dropout", "mask_id"
            )
        if self.mask_id is not None and self.mask_id >= self.vocab:
            raise contradiction(
                f"mask_id = {self.mask_id} is beyond the vocabulary of {self.vocab} tokens",
                "mask_id",
                "vocab",
            )
        return self

    @property
    def position_width(self) -> int:
        return self.inner_width

    @property
    def token_types(self) -> int:
        return self.n_types

    @property
    def incremental(self) -> bool:
        return self.mask_id is None  # otherwise vectors depend on how many tokens are masked

    def layout(self) -> Layout:
        parts = {"tokens": embedding(stated(self.vocab), self.d_embed, cut=BY_VOCABULARY)}
        if self.n_types:
            parts["types"] = embedding(self.n_types, self.inner_width)
        parts["norm"] = self.norm.layout()
        if self.projection != "none":
            parts["proj"] = linear(self.d_embed, self.d_model, bias=bool(self.projection_bias))
        return Layout(parts, f"vocab {self.vocab}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from torch import nn

        from zoo.linear import Linear
        from zoo_components.modules.embedding import TokenDropout
        from zoo_components.modules.embedding import TokenEmbedding as Module

        proj = token_dropout = None
        if self.projection != "none":
            proj = Linear(self.d_embed, self.d_model, bias=bool(self.projection_bias))
        if self.mask_id is not None:
            token_dropout = TokenDropout(self.token_dropout, self.mask_id)
        return Module(
            vocab=stated(self.vocab),
            d_embed=self.d_embed,
            scale=scale_factor(self.scale, self.d_model),
            round_scale=self.scale == "sqrt_d_model_rounded",
            proj=proj,
            project_first=self.projection == "before_positions",
            types=nn.Embedding(self.n_types, self.inner_width) if self.n_types else None,
            positions=scheme,
            norm=self.norm.build(),
            norm_site="after_positions" if self.sum_norm else "before_positions",
            dropout=self.dropout,
            zero_masked=self.masked_tokens == "zeroed",
            token_dropout=token_dropout,
        )


def scale_factor(scale: float | str, d_model: int) -> float:
    """The `scale` of an embedding as a number; that of a text is the root of d_model."""
    return d_model**0.5 if isinstance(scale, str) else float(scale)


class NormedTokens(TokenEmbedding):
    """The embedding `tokens`, with a norm before positions are added, not after it: dropout(
    norm(scale * table[ids]) + positions), as in the decoder of the smallest Blenderbot (Roller et
    al. 2020, arXiv:2004.13637)."""

    sum_norm: ClassVar[None] = None
    norm: Annotated[Norm, Slot("norm", width="inner_width")]
    """The norm before positions are added."""


class Vectors(Embedding):
    """Input vectors instead of token ids: dropout(x + positions)."""

    takes_ids: ClassVar[bool] = False
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @property
    def input_width(self) -> int:
        return self.d_model

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.embedding import Vectors as Module

        return Module(positions=scheme, dropout=self.dropout)


class OfFeatures(Embedding):
    """What embeddings have in common that are called with the features of each frame of a signal,
    (batch, frames, n_features)."""

    takes_ids: ClassVar[bool] = False
    n_features: Size
    """The number of features of each frame, such as the bands of a mel spectrogram."""

    @property
    def input_width(self) -> int:
        return self.n_features

    @property
    def spectrogram_shape(self) -> tuple[int | None, int]:
        return None, self.n_features


class ProjectedVectors(OfFeatures):
    """Input vectors of any width, such as the bands of a spectrogram, instead of token ids:
    dropout(projection(norm(x)) + positions), where the projection is a linear map to d_model
    (w2v-BERT 2.0: Seamless Communication 2023, arXiv:2312.05187)."""

    example: ClassVar[Mapping[str, Any]] = {"n_features": 16}
    norm: Annotated[Norm, Slot("norm", width="n_features")]
    """The norm of the input vectors."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    def layout(self) -> Layout:
        parts = {
            "norm": self.norm.layout(),
            "projection": linear(self.n_features, self.d_model),
        }
        return Layout(parts, f"n_features {self.n_features}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.embedding import ProjectedVectors as Module

        return Module(
            n_features=self.n_features,
            d_model=self.d_model,
            norm=self.norm.build(),
            positions=scheme,
            dropout=self.dropout,
        )
