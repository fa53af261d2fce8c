"""A decoder whose text has images in it, in the `builder` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import Given, Part, Size, Slot, contradiction
from zoo.layout import Layout, linear
from zoo.only_with import UNSTATED, NotWith, stated
from zoo.purpose import InsertedImages
from zoo.slots import Norm
from zoo_components.activation import Activated, Activation
from zoo_components.builders import check_images
from zoo_components.inserting import InsertingDecoder
from zoo_components.stack import DecoderStack, ImageStack

if TYPE_CHECKING:
    from torch import nn

    from zoo.transformer import Transformer
    from zoo_components.modules.image_text import Projector as ProjectorModule


class StatesProjector(Activated):
    """The map from the states of images to the width of the decoder's embeddings, two linear maps
    with an activation between (LLaVA 1.5: Liu et al. 2023, arXiv:2310.03744, section 3.2), or a
    single one (LLaVA: Liu et al. 2023, arXiv:2304.08485, section 4.1). The states of neighbouring
    patches may become one before."""

    d_in: Given[int]
    d_out: Given[int]
    merge: Size = 1
    """The states of so many by so many patches become one."""
    merge_by: Annotated[
        Literal["concatenation", "mean", "linear"] | None,
        NotWith("merge", 1, default="concatenation"),
    ] = UNSTATED
    """How they do: as one vector, row by row (pixel shuffle; Idefics3: Laurençon et al. 2024,
    arXiv:2408.12637), as their mean (Gemma 3: arXiv:2503.19786), or by a linear map of that one
    vector, without a bias, to the width of a single state (Mistral Small 3.1)."""
    d_merged: Given[int] = Field(
        default_factory=lambda data: (
            data["d_in"] * (data["merge"] ** 2 if data["merge_by"] == "concatenation" else 1)
        )
    )
    """The width of what the maps take."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_merged")]
    """The norm of what the maps take; by default there is none."""
    activation: Activation = "gelu"
    """The activation between the two maps; with `none` there is a single map."""
    d_hidden: Annotated[Size | None, NotWith("activation", "none")] = Field(
        default_factory=lambda data: None if data["activation"] == "none" else data["d_out"]
    )
    """The width between the two maps; by default that of the decoder's embeddings."""
    bias: bool = True
    """Whether the maps have a bias."""

    @property
    def _merged_shape(self) -> tuple[int, int]:
        """The rows and the columns of the states that become one."""
        return self.merge, self.merge

    @property
    def _n_merged(self) -> int:
        """The number of states that become one."""
        rows, columns = self._merged_shape
        return rows * columns

    @property
    def _mapped_width(self) -> int | None:
        """The width of the vector of merged states that a linear map makes narrower; None if none
        does."""
        return self.d_in * self._n_merged if self.merge_by == "linear" else None

    def n_states(self, n_vectors: int) -> int:
        """The number of states that so many become."""
        return n_vectors // self._n_merged

    def layout(self) -> Layout:
        before: dict[str, Layout] = {}
        if self._mapped_width is not None:
            before["merge_proj"] = linear(self._mapped_width, self.d_merged, bias=False)
        if not (norm := self.norm.layout()).is_empty:
            before["norm"] = norm
        merged = "" if self.merge == 1 else f"merge {self.merge}, merge_by {self.merge_by}, "
        if self.d_hidden is None:
            proj = linear(self.d_merged, self.d_out, bias=self.bias)
            return Layout({**before, "proj": proj}, f"{merged}linear")
        return Layout(
            {
                **before,
                "up_proj": linear(self.d_merged, self.d_hidden, bias=self.bias),
                **self.activation_parts(),
                "down_proj": linear(self.d_hidden, self.d_out, bias=self.bias),
            },
            f"{merged}mlp {self.activation}, d_hidden {self.d_hidden}",
        )

    def build(self) -> "ProjectorModule":
        return self._module(None)

    def _module(self, grid: tuple[int, int] | None) -> "ProjectorModule":
        """The module, for patches of so many rows and columns if these are known."""
        from zoo.linear import Linear
        from zoo_components.modules.image_text import Merging
        from zoo_components.modules.image_text import Projector as Module

        merging = merge_proj = None
        if self.merge > 1:
            merging = Merging(self._merged_shape, mean=self.merge_by == "mean", grid=grid)
        if self._mapped_width is not None:
            merge_proj = Linear(self._mapped_width, self.d_merged, bias=False)
        maps: dict[str, nn.Module] = {}
        if self.d_hidden is None:
            maps["proj"] = Linear(self.d_merged, self.d_out, bias=self.bias)
        else:
            maps["up_proj"] = Linear(self.d_merged, self.d_hidden, bias=self.bias)
            maps["activation"] = self.build_activation()
            maps["down_proj"] = Linear(self.d_hidden, self.d_out, bias=self.bias)
        norm = self.norm.build()
        return Module(merging=merging, merge_proj=merge_proj, norm=norm, maps=maps)


class Projector(StatesProjector):
    """The map from the states of images of one size to the width of the decoder's embeddings, two
    linear maps with an activation between (LLaVA 1.5: Liu et al. 2023, arXiv:2310.03744, section
    3.2), or a single one (LLaVA: Liu et al. 2023, arXiv:2304.08485, section 4.1). The states of
    neighbouring patches may become one before."""

    grid: Given[tuple[int, int, int] | None] = None
    """`Embedding.grid` of the images."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.merge == 1:
            return self
        if self.grid is None:
            raise contradiction("these images have no patches that could be merged", "merge")
        _, rows, columns = self.grid
        if rows % self.merge or columns % self.merge:
            raise contradiction(
                f"{rows} x {columns} patches cannot be divided into squares of {self.merge} x "
                f"{self.merge}",
                "merge",
            )
        return self

    def _with_map(self, name: str, further: Layout, label: str) -> Layout:
        """The layout with a further linear map before the last one, under a label in place of
        `mlp`."""
        whole = super().layout()
        before = dict(whole.parts)
        last = before.pop("down_proj")
        parts = {**before, name: further, "down_proj": last}
        return Layout(parts, whole.label.replace("mlp", label))

    def build(self) -> "ProjectorModule":
        return self._module(None if self.grid is None else self.grid[1:])


class ImageTextDecoder(InsertingDecoder):
    """A stack that predicts the next token of a text with images in it, and a head (LLaVA: Liu et
    al. 2023, arXiv:2304.08485, section 4.1). At the places of the token `image_id` stand, in the
    place of its vector, the states of images, mapped to the width of the vectors of tokens."""

    example: ClassVar[Mapping[str, Any]] = {
        "image_id": 1,
        "image": {"embedding": {"kind": "patches", "image_size": 6, "patch_size": 2}},
    }

    medium: ClassVar[str] = "image"
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
        Projector,
        Part(
            d_in="image.output_width",
            d_out="decoder.embedding.position_width",
            grid="image.embedding.grid",
        ),
    ]
    """The map of these states to the width of the vectors of tokens."""
    bidirectional: Literal["none", "image", "prompt"] = "none"
    """Which tokens attend to later ones too: none; those of an image, to all of that image
    (`image`; Gemma 3: arXiv:2503.19786); or those of a prompt, to the whole prompt (`prompt`, a
    prefix LM: Raffel et al. 2019, arXiv:1910.10683, section 3.2.1; PaliGemma: arXiv:2407.07726)."""

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        check_images(self.image)
        self._check_inserted_id()
        if self.projector.merge > 1 and self.image_states == "all":
            raise contradiction(
                "the states before those of the patches cannot be merged with them",
                "image_states",
                "projector.merge",
            )
        self._check_bidirectional()
        return self

    def _check_bidirectional(self) -> None:
        if self.bidirectional == "none":
            return
        if not self.decoder.causal:
            raise contradiction(
                "`bidirectional` changes nothing beside `causal = false`: all tokens attend to "
                "later ones",
                "bidirectional",
                "decoder.causal",
            )
        for group in self.decoder.groups:
            if group.block.only_causal:
                raise contradiction(
                    "a layer whose tokens see no later ones, such as a recurrence, cannot be "
                    "bidirectional",
                    "bidirectional",
                    "decoder.self_attn.kind",
                )

    @property
    def _n_before(self) -> int:
        """The number of the states of an image that are left out, which are the first."""
        grid = self.image.embedding.grid
        return 0 if grid is None or self.image_states == "all" else grid[0]

    @property
    def _inserted_images(self) -> InsertedImages:
        shape, n_vectors = self.image.embedding.image_shape, self.image.embedding.n_vectors
        n_states = self.projector.n_states(stated(n_vectors) - self._n_before)
        return InsertedImages(self.image_id, stated(shape), n_states)

    @property
    def _inserts(self) -> dict[str, Any]:
        prompt = self.bidirectional == "prompt"
        return {"inserted_images": self._inserted_images, "bidirectional_prompt": prompt}

    def build(self) -> "Transformer":
        from zoo_components.modules.image_text import ImageTextDecoder as Module
        from zoo_components.modules.tying import tie

        return tie(Module(**self._parts()), self.ties())

    def _parts(self) -> dict[str, Any]:
        return {
            **super()._parts(),
            "n_states": self._inserted_images.n_states,
            "n_before": self._n_before,
            "bidirectional": self.bidirectional,
        }
