"""Embeddings of images: the `embedding` slot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from zoo.component import Probability, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear
from zoo.slots import Embedding, Norm

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class Patches(Embedding):
    """Square patches of images, each mapped to a vector: the model is called with images (batch,
    channels, image_size, image_size). dropout([class_token, linear(patches)] + positions), row by
    row (ViT: Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1). The order is class token,
    distillation token, registers, patches."""

    takes_ids: ClassVar[bool] = False
    example: ClassVar[Mapping[str, Any]] = {"image_size": 6, "patch_size": 2}
    image_size: Size
    """The height and the width of the images, in pixels. Those at the bottom and on the right that
    make no whole patch are not seen, as of 384 pixels with patches of 14."""
    patch_size: Size
    """The height and the width of a patch, in pixels."""
    channels: Size = 3
    """The number of channels of the images."""
    class_token: bool = True
    """Whether a learned vector comes before those of the patches, for heads that take the state of
    the first position."""
    distillation_token: bool = False
    """Whether a second learned vector comes after the class token, whose state learns from a
    teacher (DeiT: Touvron et al. 2020, arXiv:2012.12877, section 4)."""
    n_registers: Shared[Annotated[int, Field(ge=0)]] = 0
    """The number of learned vectors before those of the patches that have no positions and that
    no head reads (Darcet et al. 2023, arXiv:2309.16588; DINOv2)."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.image_size < self.patch_size:
            raise contradiction(
                f"images of {self.image_size} pixels have no patch of {self.patch_size}",
                "image_size",
                "patch_size",
            )
        if self.distillation_token and not self.class_token:
            raise contradiction(
                "a distillation token comes second, after a class token",
                "distillation_token",
                "class_token",
            )
        return self

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.image_size, self.image_size

    @property
    def n_vectors(self) -> int:
        return self.n_positions + self.n_registers

    @property
    def n_positions(self) -> int:
        n_patches = (self.image_size // self.patch_size) ** 2
        return n_patches + self.class_token + self.distillation_token

    @property
    def grid(self) -> tuple[int, int, int]:
        side = self.image_size // self.patch_size
        return self.n_vectors - side * side, side, side

    @property
    def incremental(self) -> bool:
        return False

    def layout(self) -> Layout:
        parts: dict[str, Layout | Tensor] = {}
        token = Tensor((self.d_model,), "embedding", fan_in=1, fan_out=self.d_model)
        if self.class_token:
            parts["class_token"] = token
        if self.distillation_token:
            parts["distillation_token"] = token
        if self.n_registers:
            parts["registers"] = replace(token, shape=(self.n_registers, self.d_model))
        parts["patches"] = patch_map(self.channels, self.patch_size, self.d_model)
        return Layout(parts, f"image_size {self.image_size}, patch_size {self.patch_size}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        return self._module(scheme)

    def _module(
        self,
        scheme: "PositionScheme | None",
        *,
        bias: bool = True,
        patch_norm: "nn.Module | None" = None,
        norm: "nn.Module | None" = None,
    ) -> "nn.Module":
        from zoo_components.modules.patches import Patches as Module

        return Module(
            d_model=self.d_model,
            patch_size=self.patch_size,
            channels=self.channels,
            bias=bias,
            class_token=self.class_token,
            distillation_token=self.distillation_token,
            n_registers=self.n_registers,
            patch_norm=patch_norm,
            positions=scheme,
            norm=norm,
            dropout=self.dropout,
        )


def patch_map(channels: int, size: int, d_model: int) -> Layout:
    """The layout of the convolution that maps each square patch to a vector. Its fans are those of
    a linear map of a patch, also where patches overlap."""
    parts = linear(channels * size**2, d_model).parts
    weight = parts["weight"]
    assert isinstance(weight, Tensor)
    return Layout({**parts, "weight": replace(weight, shape=(d_model, channels, size, size))})


class NormedPatches(Patches):
    """The embedding `patches`, with a norm after the sum (CLIP: Radford et al. 2021,
    arXiv:2103.00020, section 2.4): dropout(norm([class_token, linear(patches)] + positions))."""

    sum_norm: ClassVar[str] = "norm"
    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm after the sum."""
    bias: bool = False
    """Whether the linear map of the patches has a bias."""

    def layout(self) -> Layout:
        whole = super().layout()
        patches = whole.parts["patches"]
        assert isinstance(patches, Layout)
        if not self.bias:
            patches = Layout({"weight": patches.parts["weight"]})
        return whole.with_parts(patches=patches, norm=self.norm.layout())

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        return self._module(scheme, bias=self.bias, norm=self.norm.build())


class PreNormedPatches(Patches):
    """The embedding `patches`, with a norm of the patches before positions are added (AIMv2: Fini
    et al. 2024, arXiv:2411.14402): dropout([class_token, norm(linear(patches))] + positions)."""

    norm: Annotated[Norm, Slot("norm", width="d_model")]
    """The norm of the patches."""

    def layout(self) -> Layout:
        return super().layout().with_parts(patch_norm=self.norm.layout())

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        return self._module(scheme, patch_norm=self.norm.build())
