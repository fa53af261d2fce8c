"""What enters a stack: the `embedding` slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import model_validator

from zoo.component import PositiveFloat, Probability, Shared, Slot
from zoo.layout import Layout, embedding
from zoo.slots import Embedding, Norm

if TYPE_CHECKING:
    from torch import nn


class TokenEmbedding(Embedding):
    """A learned vector for each token: dropout(norm(scale * table[ids] + positions)) (Vaswani et
    al. 2017, section 3.4)."""

    scale: PositiveFloat | Literal["sqrt_d_model"] = 1.0
    """What the token vectors are multiplied with, before positions are added."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_model")]
    """A norm after the sum (as in BERT)."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the norm."""

    @model_validator(mode="after")
    def _check(self) -> TokenEmbedding:
        if self.vocab is None:
            raise ValueError(
                "a token embedding needs the size of its vocabulary: state `vocab`, or "
                "`source_vocab` and `target_vocab`, at the top of the spec"
            )
        return self

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return self.d_model**0.5 if self.scale == "sqrt_d_model" else float(self.scale)

    def layout(self) -> Layout:
        parts = {"tokens": embedding(self.vocab or 0, self.d_model)}
        norm = self.norm.layout()
        return Layout(parts | ({"norm": norm} if norm.parts else {}), f"{self.vocab} tokens")

    def build(self, scheme: nn.Module | None = None) -> nn.Module:
        from zoo_components.modules.embedding import TokenEmbedding as Module

        return Module(
            vocab=self.vocab or 0,
            d_model=self.d_model,
            scale=self.factor,
            positions=scheme,
            norm=self.norm.build(),
            dropout=self.dropout,
        )


class Vectors(Embedding):
    """No vocabulary: the model is called with vectors. dropout(x + positions)."""

    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    def build(self, scheme: nn.Module | None = None) -> nn.Module:
        from zoo_components.modules.embedding import Vectors as Module

        return Module(positions=scheme, dropout=self.dropout)
