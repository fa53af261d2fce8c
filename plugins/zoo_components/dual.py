"""Two encoders whose vectors are compared, in the `builder` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import model_validator

from zoo.component import Part, Size, Slot, contradiction
from zoo.layout import Layout, vector
from zoo.only_with import stated
from zoo.purpose import Comparison, Reading, Task
from zoo.slots import Builder, Head
from zoo_components.builders import check_ids, check_images, layout_of
from zoo_components.stack import EncoderStack, ImageStack

if TYPE_CHECKING:
    from zoo.transformer import Transformer


class DualEncoder(Builder):
    """An encoder of images and one of texts, whose vectors are compared (CLIP: Radford et al. 2021,
    arXiv:2103.00020): exp(logit_scale) * image_vector . text_vector + logit_bias, for each image
    and each text."""

    example: ClassVar[Mapping[str, Any]] = {
        "image": {"embedding": {"kind": "patches", "image_size": 6, "patch_size": 2}}
    }

    text_vocab: Size | None = None
    """The number of tokens in the vocabulary of the texts."""
    image: Annotated[ImageStack, Part()]
    """The stack that reads images."""
    text: Annotated[EncoderStack, Part(vocab="text_vocab")]
    """The stack that reads texts."""
    image_head: Annotated[
        Head,
        Slot("head", default="joint_embedding", inherit=False, d_model="image.output_width"),
    ]
    """The head that makes a vector of an image's states."""
    text_head: Annotated[
        Head,
        Slot(
            "head",
            default="joint_embedding",
            inherit=False,
            vocab="text_vocab",
            d_model="text.output_width",
        ),
    ]
    """The head that makes a vector of a text's states."""
    logit_scale: float = 2.6592
    """The initial value of the learned logarithm of the factor; by default that of 1 / 0.07 (CLIP,
    section 2.5)."""
    logit_bias: float | None = None
    """The initial value of the learned number that is added: -10 in SigLIP (Zhai et al. 2023,
    arXiv:2303.15343, section 3.2). Unless it is stated, nothing is added."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_images(self.image)
        if not self.text.embedding.takes_ids:
            raise contradiction(
                f"the embedding `{self.text.embedding.kind}` reads no texts: state one that does "
                "under `text`, such as `tokens`",
                "text.embedding.kind",
            )
        check_ids(self.image_head, self.image, "image_head")
        check_ids(self.text_head, self.text, "text_head")
        for key, head in {"image_head": self.image_head, "text_head": self.text_head}.items():
            if head.vector_width is None:
                raise contradiction(
                    f"the head `{head.kind}` makes no vectors that could be compared: choose one "
                    "that does, such as `joint_embedding`",
                    f"{key}.kind",
                )
        widths = (self.image_head.vector_width, self.text_head.vector_width)
        if widths[0] != widths[1]:
            raise contradiction(
                f"vectors of images are {widths[0]} wide and those of texts {widths[1]}, so that "
                "they cannot be compared: state the same `d_out` for both heads",
                "image_head.d_out",
                "text_head.d_out",
                "image.d_model",
                "text.d_model",
                "d_model",
            )
        return self

    @property
    def images(self) -> Mapping[str, tuple[int, int, int]]:
        return {"image": stated(self.image.embedding.image_shape)}

    @property
    def called_with(self) -> tuple[Reading, ...]:
        read = self.text.reading
        return () if read is None else (read,)

    @property
    def task(self) -> Task:
        return "embed"

    @property
    def comparison(self) -> Comparison:
        return Comparison(
            probability="softmax" if self.logit_bias is None else "sigmoid",
            pads=self.text_head.reads_padding,
        )

    def layout(self) -> Layout:
        whole = layout_of(
            image=self.image, text=self.text, image_head=self.image_head, text_head=self.text_head
        )
        numbers = {"logit_scale": vector(1, value=self.logit_scale)}
        if self.logit_bias is not None:
            numbers["logit_bias"] = vector(1, value=self.logit_bias)
        return whole.with_parts(**numbers)

    def build(self) -> "Transformer":
        from zoo_components.modules.dual import DualEncoder as Module

        return Module(
            image=self.image.build(padding_read=self.image_head.reads_padding),
            text=self.text.build(padding_read=self.text_head.reads_padding),
            image_head=self.image_head.build(),
            text_head=self.text_head.build(),
            text_head_takes_ids=self.text_head.takes_ids,
            has_bias=self.logit_bias is not None,
        )
