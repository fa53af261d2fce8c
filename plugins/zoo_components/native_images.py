"""A decoder whose text has images of any size in it, in the `builder` slot, and the embedding of
their patches."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from zoo.component import Given, Part, Probability, Shared, Size, Slot, contradiction
from zoo.layout import LayerList, Layout, embedding, linear
from zoo.only_with import stated
from zoo.purpose import AnySize, InsertedImages
from zoo.slots import Embedding, Norm
from zoo_components.image_text import StatesProjector
from zoo_components.inserting import InsertingDecoder
from zoo_components.stack import DecoderStack, ImageStack

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme
    from zoo.transformer import Transformer


class PatchVectors(Embedding):
    """The values of square patches of images of any size, each mapped to a vector: dropout(linear(
    patches) + positions). A model is called with the images, and gives it their patches, row by
    row (NaViT: Dehghani et al. 2023, arXiv:2307.06304)."""

    takes_ids: ClassVar[bool] = False
    example: ClassVar[Mapping[str, Any]] = {"patch_size": 2}
    patch_size: Size
    """The height and the width of a patch, in pixels."""
    channels: Size = 3
    """The number of channels of the images."""
    frames: Size = 1
    """The number of frames of a film that a patch spans: an image stands in all of them (Qwen2-VL:
    Wang et al. 2024, arXiv:2409.12191, section 2.1)."""
    bias: bool = False
    """Whether the map has a bias."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @property
    def input_width(self) -> int:
        return self.channels * self.frames * self.patch_size**2

    @property
    def patch_shape(self) -> tuple[int, int, int]:
        return self.channels, self.frames, self.patch_size

    def layout(self) -> Layout:
        patches = linear(self.input_width, self.d_model, bias=self.bias)
        frames = "" if self.frames == 1 else f", frames {self.frames}"
        return Layout({"patches": patches}, f"patch_size {self.patch_size}{frames}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.native_images import PatchVectors as Module

        return self._module(Module, scheme)

    def _module(
        self,
        cls: "Callable[..., nn.Module]",
        scheme: "PositionScheme | None",
        norm: "nn.Module | None" = None,
    ) -> "nn.Module":
        return cls(
            width=self.input_width,
            d_model=self.d_model,
            bias=self.bias,
            norm=norm,
            positions=scheme,
            dropout=self.dropout,
        )


class NormedPatchVectors(PatchVectors):
    """The embedding `patch_vectors`, with a norm of the vectors of patches before positions are
    added (Pixtral: Agrawal et al. 2024, arXiv:2410.07073): dropout(norm(linear(patches)) +
    positions)."""

    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of the vectors of patches."""

    def layout(self) -> Layout:
        return super().layout().with_parts(norm=self.norm.layout())

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.native_images import PatchVectors as Module

        return self._module(Module, scheme, self.norm.build())


class GridPatchVectors(PatchVectors):
    """The embedding `patch_vectors`, with a learned table of the places of patches: dropout(linear(
    patches) + table + positions). The table is a grid that is stretched over the image, corner to
    corner, by bilinear interpolation (Qwen3-VL: Bai et al. 2025, arXiv:2511.21631, section 2). Of
    patches without a row and a column, both are the position."""

    example: ClassVar[Mapping[str, Any]] = {"patch_size": 2, "grid_size": 3}
    grid_size: Size
    """The number of rows and of columns of the table."""

    @property
    def axes(self) -> int:
        return 2

    @property
    def incremental(self) -> bool:
        return False

    @property
    def looks_ahead(self) -> bool:
        return True

    def layout(self) -> Layout:
        whole = super().layout().with_parts(grid=embedding(self.grid_size**2, self.d_model))
        return replace(whole, label=f"{whole.label}, grid {self.grid_size} x {self.grid_size}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.native_images import GridPatchVectors as Module

        return self._module(partial(Module, grid_size=self.grid_size), scheme)


class NativeImageTextDecoder(InsertingDecoder):
    """A stack that predicts the next token of a text with images of any size in it, and a head
    (Qwen2-VL: Wang et al. 2024, arXiv:2409.12191). At the places of the token `image_id` stand, in
    the place of its vector, the states of images, mapped to the width of the vectors of tokens; the
    larger an image, the more there are."""

    example: ClassVar[Mapping[str, Any]] = {
        "image_id": 1,
        "image": {"embedding": {"kind": "patch_vectors", "patch_size": 2}},
    }

    medium: ClassVar[str] = "image"
    decoder: Annotated[DecoderStack, Part(vocab="vocab")]
    """The stack that reads the text with its images. A position scheme that tells apart time, rows
    and columns, such as `rotary_multimodal`, is given those of the states; after an image, text
    goes on beyond the larger number of its rows and columns. By others, each state has the next
    position."""
    image_id: int = Field(ge=0)
    """The id of the token at whose places the states of images stand. An image takes as many of
    these tokens as it has states."""
    image: Annotated[ImageStack, Part()]
    """The stack that reads images. A position scheme that tells apart rows and columns, such as
    `rotary_axial`, is given those of the patches, and so is such an attention, `tiled`; other
    schemes count the patches row by row."""
    projector: Annotated[
        StatesProjector,
        Part(d_in="image.output_width", d_out="decoder.embedding.position_width"),
    ]
    """The map of the states of patches to the width of the vectors of tokens."""

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        if self.image.embedding.patch_shape is None:
            raise contradiction(
                f"the embedding `{self.image.embedding.kind}` takes no patches of images of any "
                "size: state one that does under `image`, such as `patch_vectors`",
                "image.embedding.kind",
            )
        self._check_inserted_id()
        for name, stack, axes, what in (
            ("image", self.image, 2, "patches have rows and columns"),
            ("decoder", self.decoder, 3, "tokens have a time, a row and a column"),
        ):
            if others := sorted(stack.axes - {axes}):
                raise contradiction(
                    f"{what} here, and a position scheme, an attention or an embedding tells apart "
                    f"{others[0]} coordinates",
                    f"{name}.position.kind",
                    f"{name}.block.self_attn.kind",
                    f"{name}.layers",
                )
        return self

    @property
    def _any_size(self) -> AnySize:
        _, frames, patch_size = stated(self.image.embedding.patch_shape)
        return AnySize(patch_size, self.projector.merge, frames, self.image.embedding.longest)

    @property
    def _inserted_images(self) -> InsertedImages:
        channels, _, _ = stated(self.image.embedding.patch_shape)
        cut = self._any_size
        return InsertedImages(self.image_id, (channels, cut.unit, 2 * cut.unit), 2, cut)

    @property
    def _inserts(self) -> dict[str, Any]:
        return {"inserted_images": self._inserted_images}

    def build(self) -> "Transformer":
        from zoo_components.modules.native_images import NativeImageTextDecoder as Module
        from zoo_components.modules.tying import tie

        return tie(Module(**self._parts()), self.ties())

    def _parts(self) -> dict[str, Any]:
        return {
            **super()._parts(),
            "channels": stated(self.image.embedding.patch_shape)[0],
            "any_size": self._any_size,
            "places": bool(self.decoder.axes),
        }


class DeepProjector(StatesProjector):
    """The map from the states of an inner layer to the width of the decoder, two linear maps with
    an activation between, or a single one. Before, as many states of neighbouring patches become
    one as in `projector`."""

    merge: Given[Size]


class DeepstackImageTextDecoder(NativeImageTextDecoder):
    """The builder `native_image_text_decoder`, in which states of inner layers of the encoder of
    images enter the text too (DeepStack: Meng et al. 2024, arXiv:2406.04334; Qwen3-VL: Bai et al.
    2025, arXiv:2511.21631, section 2): those after the k-th of `deep_layers`, each mapped to the
    width of the decoder by maps of its own, are added to the states of the image's tokens after the
    k-th layer of the decoder."""

    example: ClassVar[Mapping[str, Any]] = {
        **NativeImageTextDecoder.example,
        "deep_layers": [0],
    }
    deep_layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    """The layers of `image`, counted from 0, after which states are read, in ascending order."""
    deep_projector: Annotated[
        DeepProjector,
        Part(d_in="image.d_model", d_out="decoder.d_model", merge="projector.merge"),
    ]
    """The maps of these states to the width of the decoder: each layer has its own."""

    @model_validator(mode="after")
    def _check_deep(self) -> Self:
        layers, n_layers = self.deep_layers, self.image.n_layers
        if any(here >= after for here, after in pairwise(layers)):
            raise contradiction("`deep_layers` must be in ascending order", "deep_layers")
        if layers[-1] >= n_layers:
            raise contradiction(
                f"layer {layers[-1]} of `deep_layers` is beyond the {n_layers} layers of `image`, "
                "which are counted from 0",
                "deep_layers",
                "image.n_layers",
            )
        if len(layers) > self.decoder.n_layers:
            raise contradiction(
                f"the states of {len(layers)} layers are added after as many of the decoder, which "
                f"has {self.decoder.n_layers}",
                "deep_layers",
                "decoder.n_layers",
            )
        for name, stack in (("image", self.image), ("decoder", self.decoder)):
            if stack.groups[0].block.merging is not None:
                raise contradiction(
                    "states of inner layers are read and added where layers have one residual "
                    "stream, and these have several",
                    f"{name}.block.kind",
                    "deep_layers",
                )
        return self

    def layout(self) -> Layout:
        whole = super().layout()
        deep = self.deep_projector.layout()
        numbers = range(len(self.deep_layers))
        told = f"{deep.label}, of layers {', '.join(map(str, self.deep_layers))}"
        projectors = LayerList(((numbers, replace(deep, label=told)),))
        image, projector, *others = whole.parts.items()
        parts = [image, projector, ("deep_projectors", projectors), *others]
        return replace(whole, parts=dict(parts))

    def build(self) -> "Transformer":
        from zoo_components.modules.native_images import DeepstackImageTextDecoder as Module
        from zoo_components.modules.tying import tie

        projectors = [self.deep_projector.build() for _ in self.deep_layers]
        model = Module(**self._parts(), deep_layers=self.deep_layers, deep_projectors=projectors)
        return tie(model, self.ties())
