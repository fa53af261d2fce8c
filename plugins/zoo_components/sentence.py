"""Sentence embeddings: the `head` slot."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from zoo.component import Size, contradiction
from zoo.layout import Layout, linear
from zoo_components.classifier import OfVectors, Pooling
from zoo_components.optional import SizeOrNone, number

if TYPE_CHECKING:
    from torch import nn


class SentenceEmbedding(OfVectors):
    """A vector for each sequence, made to be compared with others (Reimers and Gurevych 2019,
    arXiv:1908.10084): normalize(activation(dense(pool(x)))), with or without a linear map to
    `d_hidden` before the dense layer."""

    pooling: Pooling = "mean"
    """How the states of the tokens become one vector."""
    d_out: SizeOrNone = "none"
    """The width of a dense layer after the pooling; with `none` there is no such layer."""
    d_hidden: Size | None = None
    """The width of what the dense layer reads, after a linear map from d_model (EmbeddingGemma:
    Vera et al. 2025, arXiv:2509.20354); by default, that is d_model, without the map."""
    activation: Literal["none", "tanh"] = "none"
    """The activation after the dense layer."""
    dense_bias: bool = True
    """Whether the dense layer, and the map before it, have a bias."""
    normalize: bool = True
    """Whether vectors are scaled to length 1, so that their dot products are cosines."""

    @property
    def vector_width(self) -> int:
        return number(self.d_out) or self.d_model

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.d_out == "none":
            defaults = {"d_hidden": None, "activation": "none", "dense_bias": True}
            for name, default in defaults.items():
                if getattr(self, name) != default:
                    raise contradiction(f"`{name}` is that of a dense layer: state `d_out`", name)
        return self

    def layout(self) -> Layout:
        maps = {
            name: linear(n_in, n_out, bias=self.dense_bias)
            for name, (n_in, n_out) in self._maps().items()
        }
        return Layout(maps)

    def _maps(self) -> dict[str, tuple[int, int]]:
        """The widths, from and to, of each map."""
        width = number(self.d_out)
        if width is None:
            return {}
        if self.d_hidden is None:
            return {"dense": (self.d_model, width)}
        return {"hidden": (self.d_model, self.d_hidden), "dense": (self.d_hidden, width)}

    def build(self) -> "nn.Module":
        from zoo.linear import Linear
        from zoo_components.modules.activation import make_activation
        from zoo_components.modules.sentence import SentenceEmbedding as Module

        maps = {
            name: Linear(*widths, bias=self.dense_bias) for name, widths in self._maps().items()
        }
        return Module(
            pooling=self.pooling,
            hidden=maps.get("hidden"),
            dense=maps.get("dense"),
            activation=make_activation(self.activation),
            normalize=self.normalize,
        )
