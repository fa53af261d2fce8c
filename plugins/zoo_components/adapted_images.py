"""A decoder whose text has images in it that three linear maps bring to its width, in the `builder`
slot."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from zoo.component import Part, Size, contradiction
from zoo.layout import Layout, linear
from zoo_components.image_text import ImageTextDecoder, Projector

if TYPE_CHECKING:
    from zoo_components.modules.image_text import Projector as ProjectorModule


class AdaptedProjector(Projector):
    """The map from the states of images of one size to the width of the decoder's embeddings, three
    linear maps with an activation after each but the last: down(activation(mid(activation(up(x)))))
    (the adapter and the projector of Llama 4). The states of neighbouring patches may become one
    before."""

    d_hidden: Size = Field(default_factory=lambda data: data["d_out"])
    """The width between the maps; by default that of the decoder's embeddings."""

    @model_validator(mode="after")
    def _check_activation(self) -> Self:
        if self.activation == "none":
            raise contradiction(
                "three linear maps without an activation between are a single one: state one, or "
                "the builder `image_text_decoder`",
                "activation",
            )
        return self

    def layout(self) -> Layout:
        mid = linear(self.d_hidden, self.d_hidden, bias=self.bias)
        return self._with_map("mid_proj", mid, "3 maps")

    def build(self) -> "ProjectorModule":
        from zoo.linear import Linear
        from zoo_components.modules.adapted_images import AdaptedProjector as Module

        mid_proj = Linear(self.d_hidden, self.d_hidden, bias=self.bias)
        return Module(super().build(), mid_proj)


class AdaptedImageTextDecoder(ImageTextDecoder):
    """The builder `image_text_decoder`, in which three linear maps bring the states of images to
    the width of the vectors of tokens (Llama 4)."""

    projector: Annotated[
        AdaptedProjector,
        Part(
            d_in="image.output_width",
            d_out="decoder.embedding.position_width",
            grid="image.embedding.grid",
        ),
    ]
    """The map of these states to the width of the vectors of tokens."""
