"""Inputs of single layers: the embedding that makes them, and the block that reads its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import model_validator

from zoo.component import Given, Part, Size, Slot, contradiction, missing_dimension
from zoo.layout import BY_VOCABULARY, Layout, column_wise, embedding, linear, row_wise
from zoo.only_with import stated
from zoo.slots import FeedForward, Norm, Sublayer
from zoo_components.activation import Activated
from zoo_components.block import Residual
from zoo_components.embedding import TokenEmbedding

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class LayeredTokens(TokenEmbedding):
    """The embedding `tokens`, which also makes an input for each layer (the per-layer embeddings of
    Gemma 3n and 4): (norm(map(x) / sqrt(d_model)) + sqrt(d_layer_input) * table[ids]) / sqrt(2),
    where x is what the embedding `tokens` returns, and the map and the table have a part for each
    layer. The block `layer_input` reads it. Of a vector that is no token's, such as a state of an
    image, the table has that of the token 0."""

    example: ClassVar[Mapping[str, Any]] = {"d_layer_input": 4}
    d_layer_input: Size
    """The width of each layer's input."""
    layer_input_norm: Annotated[Norm, Slot("norm", width="d_layer_input")]
    """The norm of each layer's part of the map."""

    @model_validator(mode="after")
    def _check_n_layers(self) -> Self:
        if self.n_layers is None:
            raise missing_dimension("n_layers")
        return self

    @property
    def layer_input_width(self) -> int:
        return self.d_layer_input

    @property
    def _table_vocab(self) -> int:
        """The number of tokens that the table of the layers has."""
        return stated(self.vocab)

    @property
    def _all_widths(self) -> int:
        return stated(self.n_layers) * self.d_layer_input

    def layout(self) -> Layout:
        inputs = Layout(
            {
                "tokens": embedding(self._table_vocab, self._all_widths, cut=BY_VOCABULARY),
                "proj": linear(self.d_model, self._all_widths, bias=False),
                "norm": self.layer_input_norm.layout(),
            }
        )
        return super().layout().with_parts(layer_inputs=inputs)

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.layer_inputs import LayerInputs

        module = super().build(scheme)
        module.layer_inputs = LayerInputs(
            vocab=self._table_vocab,
            d_model=self.d_model,
            n_layers=stated(self.n_layers),
            width=self.d_layer_input,
            norm=self.layer_input_norm.build(),
        )
        return module


class PartlyLayeredTokens(LayeredTokens):
    """The embedding `layered_tokens`, whose table of the layers has fewer tokens than the model:
    the others have that of the token 0 (Gemma 3n)."""

    example: ClassVar[Mapping[str, Any]] = {**LayeredTokens.example, "layer_vocab": 3}
    layer_vocab: Size
    """The number of tokens of that table, which are the first of the model's."""

    @model_validator(mode="after")
    def _check_layer_vocab(self) -> Self:
        if self.layer_vocab >= stated(self.vocab):
            raise contradiction(
                f"a table of {self.layer_vocab} tokens is for all {self.vocab} of the model: state "
                "`layered_tokens`",
                "layer_vocab",
                "kind",
                "vocab",
            )
        return self

    @property
    def _table_vocab(self) -> int:
        return self.layer_vocab


class GatedInput(Activated, FeedForward):
    """out(activation(gate(x)) * input), where the input is the layer's own."""

    kind: Given[str]
    layer_input_width: Given[int | None]

    def layout(self) -> Layout:
        width, learned = stated(self.layer_input_width), self.activation_parts()
        to, back = (None, None) if learned else (column_wise(width), row_wise(width))
        parts = {
            "gate_proj": linear(self.d_model, width, bias=False, cut=to),
            **learned,
            "out_proj": linear(width, self.d_model, bias=False, residual=True, cut=back),
        }
        return Layout(parts, f"{self.activation}, width {width}")

    def build(self) -> "nn.Module":
        from zoo_components.modules.layer_inputs import GatedInput as Module

        return Module(
            d_model=self.d_model,
            width=stated(self.layer_input_width),
            activation=self.build_activation(),
        )


class LayerInput(Residual):
    """The layer `residual` with one more branch, the last: what a gate lets through of an input of
    the layer's own, out(activation(gate(x)) * input) (Gemma 3n and 4). An embedding such as
    `layered_tokens` makes the inputs."""

    layer_input: Annotated[GatedInput, Part()]
    """The branch that reads the input."""

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.layer_input_width is None:
            raise contradiction(
                "the layer reads an input of its own, and the embedding makes none: state one that "
                "does, such as `layered_tokens`",
                "kind",
                "layer_input_width",
            )
        return self

    @property
    def takes_layer_input(self) -> bool:
        return True

    def _branches(self) -> dict[str, Sublayer | None]:
        return {**super()._branches(), "layer_input": self.layer_input}

    def build(self) -> "nn.Module":
        from zoo_components.modules.layer_inputs import LayerInputBlock

        return self._module(LayerInputBlock)
