"""A decoder whose text has images in it, in the `builder` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, Part, Size, contradiction
from zoo.layout import Layout, linear
from zoo.only_with import NotWith, stated
from zoo.purpose import InsertedImages
from zoo_components.activation import Activated, Activation
from zoo_components.builders import Decoder, layout_of
from zoo_components.stack import DecoderStack, ImageStack

if TYPE_CHECKING:
    from torch import nn

    from zoo.transformer import Transformer


class Projector(Activated):
    """The map from the states of images to the width of the decoder's embeddings, two linear maps
    with an activation between (LLaVA 1.5: Liu et al. 2023, arXiv:2310.03744, section 3.2), or a
    single one (LLaVA: Liu et al. 2023, arXiv:2304.08485, section 4.1)."""

    d_in: Given[int]
    d_out: Given[int]
    activation: Activation = "gelu"
    """The activation between the two maps; with `none` there is a single map."""
    d_hidden: Annotated[Size | None, NotWith("activation", "none")] = Field(
        default_factory=lambda data: None if data["activation"] == "none" else data["d_out"]
    )
    """The width between the two maps; by default that of the decoder's embeddings."""
    bias: bool = True
    """Whether the maps have a bias."""

    def layout(self) -> Layout:
        if self.d_hidden is None:
            return Layout({"proj": linear(self.d_in, self.d_out, bias=self.bias)}, "linear")
        return Layout(
            {
                "up_proj": linear(self.d_in, self.d_hidden, bias=self.bias),
                **self.activation_parts(),
                "down_proj": linear(self.d_hidden, self.d_out, bias=self.bias),
            },
            f"mlp {self.activation}, d_hidden {self.d_hidden}",
        )

    def build(self) -> "nn.Module":
        from zoo_components.modules.image_text import LinearProjector, MlpProjector

        if self.d_hidden is None:
            return LinearProjector(self.d_in, self.d_out, bias=self.bias)
        return MlpProjector(
            d_in=self.d_in,
            d_hidden=self.d_hidden,
            d_out=self.d_out,
            activation=self.build_activation(),
            bias=self.bias,
        )


class ImageTextDecoder(Decoder):
    """A stack that predicts the next token of a text with images in it, and a head (LLaVA: Liu et
    al. 2023, arXiv:2304.08485, section 4.1). At the places of the token `image_id` stand, in the
    place of its vector, the states of images, mapped to the width of the vectors of tokens."""

    example: ClassVar[Mapping[str, Any]] = {
        "image_id": 1,
        "image": {"embedding": {"kind": "patches", "image_size": 6, "patch_size": 2}},
    }

    memory_width: ClassVar[None] = None  # type: ignore[misc]  # no field: there is no memory
    decoder: Annotated[DecoderStack, Part(vocab="vocab")]
    """The stack that reads the text with its images."""
    image_id: int = Field(ge=0)
    """The id of the token at whose places the states of images stand. An image takes as many of
    these tokens as it has states."""
    image: Annotated[ImageStack, Part()]
    """The stack that reads images."""
    image_states: Literal["patches", "all"] = "patches"
    """Which states of an image enter the text: those of its patches, or also those before them,
    such as that of the class token."""
    projector: Annotated[
        Projector, Part(d_in="image.output_width", d_out="decoder.embedding.position_width")
    ]
    """The map of these states to the width of the vectors of tokens."""

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        if self.image.embedding.image_shape is None:
            raise contradiction(
                f"the embedding `{self.image.embedding.kind}` takes no images: state one that does "
                "under `image`, such as `patches`",
                "image.embedding.kind",
            )
        if not self.decoder.embedding.takes_inserted:
            raise contradiction(
                f"images cannot stand among the vectors of the embedding "
                f"`{self.decoder.embedding.kind}`: state one that takes them under `decoder`, such "
                "as `tokens`",
                "decoder.embedding.kind",
            )
        vocab = self.decoder.vocab_of_ids
        if vocab is not None and self.image_id >= vocab:
            raise contradiction(
                f"image_id = {self.image_id} is beyond the vocabulary of {vocab} tokens",
                "image_id",
                "vocab",
            )
        if self.image_id == self.decoder.pad_id:
            raise contradiction(
                f"the id {self.image_id} cannot stand for images and for padding",
                "image_id",
                "decoder.pad_id",
            )
        return self

    @property
    def _n_before(self) -> int:
        """The number of the states of an image that are left out, which are the first."""
        grid = self.image.embedding.grid
        return 0 if grid is None or self.image_states == "all" else grid[0]

    @property
    def _inserted_images(self) -> InsertedImages:
        shape, n_vectors = self.image.embedding.image_shape, self.image.embedding.n_vectors
        return InsertedImages(self.image_id, stated(shape), stated(n_vectors) - self._n_before)

    def layout(self) -> Layout:
        return layout_of(
            image=self.image.layout(),
            projector=self.projector.layout(),
            decoder=self.decoder.layout(),
            head=self.head.layout(),
        )

    def build(self) -> "Transformer":
        from zoo_components.modules.image_text import ImageTextDecoder as Module

        model = Module(
            image=self.image.build(),
            projector=self.projector.build(),
            decoder=self.decoder.build(padding_read=self.head.reads_padding),
            head=self.head,
            vocab=stated(self.decoder.vocab_of_ids),
            image_id=self.image_id,
            n_before=self._n_before,
        )
        return model.tie(self.ties())
