"""Sentence embeddings: the `head` slot."""

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from zoo.component import contradiction
from zoo.layout import Layout, linear
from zoo.purpose import Task
from zoo.slots import Head
from zoo_components.classifier import Pooling
from zoo_components.optional import SizeOrNone, number

if TYPE_CHECKING:
    from torch import nn


class SentenceEmbedding(Head):
    """A vector for each sequence, made to be compared with others (Reimers and Gurevych 2019,
    arXiv:1908.10084): normalize(activation(dense(pool(x))))."""

    reads_vocab: ClassVar[bool] = False
    pools: ClassVar[bool] = True
    pooling: Pooling = "mean"
    """How the states of the tokens become one vector."""
    d_out: SizeOrNone = "none"
    """The width of a dense layer after the pooling; with `none` there is no such layer."""
    activation: Literal["none", "tanh"] = "none"
    """The activation after the dense layer."""
    dense_bias: bool = True
    """Whether the dense layer has a bias."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that their dot products are cosines."""

    @property
    def task(self) -> Task:
        return "embed"

    @property
    def vector_width(self) -> int:
        return number(self.d_out) or self.d_model

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.d_out == "none":
            for name, default in (("activation", "none"), ("dense_bias", True)):
                if getattr(self, name) != default:
                    raise contradiction(f"`{name}` is that of a dense layer: state `d_out`", name)
        return self

    def layout(self) -> Layout:
        width = number(self.d_out)
        if width is None:
            return Layout(label=self.kind)
        dense = linear(self.d_model, width, bias=self.dense_bias)
        return Layout({"dense": dense}, self.kind)

    def build(self) -> "nn.Module":
        from zoo.linear import Linear
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.sentence import SentenceEmbedding as Module

        width = number(self.d_out)
        dense = None
        if width is not None:
            dense = Linear(self.d_model, width, bias=self.dense_bias)
        return Module(
            pooling=self.pooling,
            dense=dense,
            activation=make_activation(self.activation),
            normalize=self.normalize,
        )
