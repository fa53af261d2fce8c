"""Disentangled attention: the `attention` slot."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, contradiction
from zoo.layout import Layout, linear
from zoo.only_with import UNSTATED, OnlyWith
from zoo_components.heads import OfHeads, heads_text
from zoo_components.projections import ALL, Projections
from zoo_components.self_attention import WithinSequence

if TYPE_CHECKING:
    from torch import nn

Term = Literal["content_to_position", "position_to_content"]


class Disentangled(OfHeads, WithinSequence):
    """Multi-head attention with separate vectors for content and position (He et al. 2020,
    arXiv:2006.03654, section 3.1): besides q k^T, the query is matched with the vector of its
    distance to the key, and the key with the same vector. It needs the position scheme
    `disentangled`, which holds those vectors."""

    reads: ClassVar[str | None] = "rel_embed"
    bias: Shared[Projections] = ALL
    """Which projections have a bias: a list of `q`, `k`, `v` and `o`, or `true` for all or `false`
    for none."""
    terms: Annotated[tuple[Term, ...], Field(min_length=1)] = (
        "content_to_position",
        "position_to_content",
    )
    """The terms that are added to q k^T: the scores of the queries with the distances, those of the
    keys with the distances, or both."""
    position_projections: Literal["own", "shared"] = "own"
    """Whether the vectors of the distances have projections of their own, or share those of keys
    and queries (DeBERTa V3)."""
    position_key_bias: Annotated[
        bool | None, OnlyWith("position_projections", "own", default=True)
    ] = UNSTATED
    """With projections of their own: whether the one whose outputs are matched with queries has a
    bias (not in DeBERTa V1)."""
    scale: PositiveFloat = Field(
        default_factory=lambda data: (data["head_dim"] * (1 + len(data["terms"]))) ** -0.5
    )
    """The factor that multiplies the sum of all scores; 1 / sqrt(head_dim * (1 + number of terms))
    by default."""
    dropout: Shared[Probability] = 0.0
    """Dropout on the attention weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.terms)) != len(self.terms):
            raise contradiction("`terms` names one term twice", "terms")
        return self

    @property
    def position_biases(self) -> dict[str, bool]:
        """The separate projections of the vectors of the distances, and whether each has a bias."""
        if self.position_projections == "shared":
            return {}
        biases = {
            "content_to_position": ("pos_k_proj", bool(self.position_key_bias)),
            "position_to_content": ("pos_q_proj", True),
        }
        return dict(biases[term] for term in self.terms)

    @property
    def against_fused(self) -> None:
        return None

    def layout(self) -> Layout:
        width = self.n_heads * self.head_dim
        biases = {f"{p}_proj": p in self.bias for p in "qkv"} | self.position_biases
        parts = {name: linear(self.d_model, width, bias=bias) for name, bias in biases.items()}
        parts["o_proj"] = linear(width, self.d_model, bias="o" in self.bias, residual=True)
        return Layout(parts, heads_text(self.n_heads, self.n_heads, self.head_dim), cache=2 * width)

    def build(self) -> "nn.Module":
        from zoo_components.modules.disentangled import DisentangledAttention
        from zoo_components.modules.scores import Scoring
        from zoo_components.modules.self_attention import Common

        scoring = Scoring(scale=self.scale, dropout=self.dropout)
        return DisentangledAttention(
            Common(self.d_model, self.n_heads, self.head_dim, self.bias, scoring),
            terms=self.terms,
            position_biases=self.position_biases,
        )
