"""A model that predicts the next token from the last one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.component import Size
from zoo.distribution import Constant, Distribution
from zoo.layout import Layout, Tensor, embedding
from zoo.slots import Builder, Init

if TYPE_CHECKING:
    from zoo.transformer import Transformer


class ConstantInit(Init):
    """Every tensor starts at one value."""

    value: float = 0.25
    """The value."""

    def distribution(self, tensor: Tensor) -> Distribution:
        return Constant(self.value)


class Bigram(Builder):
    """A table of logits, a row for each token."""

    vocab: Size
    """Tokens of the vocabulary."""

    def layout(self) -> Layout:
        return Layout({"table": embedding(self.vocab, self.vocab)})

    def build(self) -> Transformer:
        import torch
        from torch import nn

        from zoo.transformer import Transformer

        class Module(Transformer):
            def __init__(self, vocab: int) -> None:
                super().__init__()
                self.table = nn.Embedding(vocab, vocab)

            def forward(self, source: torch.Tensor) -> torch.Tensor:
                """(batch, length) to (batch, length, vocab)."""
                return self.table(source)

        return Module(self.vocab)
