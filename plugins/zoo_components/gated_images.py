"""A decoder whose text has images in it that a gated linear unit maps to its width, in the
`builder` slot."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zoo.component import Part, Size
from zoo.layout import Layout, linear
from zoo_components.activation import Activation
from zoo_components.image_text import ImageTextDecoder, Projector

if TYPE_CHECKING:
    from zoo_components.modules.image_text import Projector as ProjectorModule


class GatedProjector(Projector):
    """The map from the states of images of one size to the width of the decoder's embeddings, a
    gated linear unit: down(activation(gate(x)) * up(x)) (Aya Vision: Dash et al. 2025,
    arXiv:2505.08751). The states of neighbouring patches may become one before."""

    activation: Activation = "silu"
    """The activation of the gate."""
    d_hidden: Size = Field(default_factory=lambda data: data["d_out"])
    """The inner width; by default that of the decoder's embeddings."""

    def layout(self) -> Layout:
        gate = linear(self.d_merged, self.d_hidden, bias=self.bias)
        return self._with_map("gate_proj", gate, "glu")

    def build(self) -> "ProjectorModule":
        from zoo.linear import Linear
        from zoo_components.modules.gated_images import GatedProjector as Module

        plain, gate = super().build(), Linear(self.d_merged, self.d_hidden, bias=self.bias)
        return Module(plain, gate, self.build_activation())


class GluImageTextDecoder(ImageTextDecoder):
    """The builder `image_text_decoder`, in which a gated linear unit maps the states of images to
    the width of the vectors of tokens (Aya Vision: Dash et al. 2025, arXiv:2505.08751)."""

    projector: Annotated[
        GatedProjector,
        Part(
            d_in="image.output_width",
            d_out="decoder.embedding.position_width",
            grid="image.embedding.grid",
        ),
    ]
    """The map of these states to the width of the vectors of tokens."""
