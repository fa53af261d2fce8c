"""An embedding of spectrograms: the `embedding` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import model_validator

from zoo.component import Probability, Shared, Size, contradiction
from zoo.layout import Layout, Tensor
from zoo_components.embedding import OfFeatures
from zoo_components.patches import patch_map

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class SpectrogramPatches(OfFeatures):
    """Square patches of a spectrogram, which may overlap, each mapped to a vector: the model is
    called with features (batch, n_frames, n_features). dropout([class_token, distillation_token,
    linear(patches)] + positions), the patches of the lowest frequencies first, those of each in the
    order of time (Audio Spectrogram Transformer: Gong et al. 2021, arXiv:2104.01778)."""

    example: ClassVar[Mapping[str, Any]] = {
        "n_features": 4,
        "n_frames": 6,
        "patch_size": 2,
        "feature_stride": 1,
        "frame_stride": 2,
    }
    n_frames: Size
    """The number of frames of each spectrogram; a shorter one is padded before the model."""
    patch_size: Size
    """The number of features and of frames of a patch."""
    feature_stride: Size
    """How many features lie between the beginnings of two patches; patches overlap if these are
    fewer than `patch_size`."""
    frame_stride: Size
    """The same for frames."""
    distillation_token: bool = True
    """Whether a second learned vector comes after the class token (DeiT, arXiv:2012.12877)."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("n_features", "n_frames"):
            if getattr(self, name) < self.patch_size:
                raise contradiction(
                    f"a patch of {self.patch_size} is larger than {name} = {getattr(self, name)}",
                    "patch_size",
                    name,
                )
        return self

    @property
    def spectrogram_shape(self) -> tuple[int | None, int]:
        return self.n_frames, self.n_features

    @property
    def n_positions(self) -> int:
        sizes = ((self.n_features, self.feature_stride), (self.n_frames, self.frame_stride))
        rows, columns = ((size - self.patch_size) // stride + 1 for size, stride in sizes)
        return rows * columns + 1 + self.distillation_token

    @property
    def incremental(self) -> bool:
        return False

    @property
    def looks_ahead(self) -> bool:
        return True

    def layout(self) -> Layout:
        token = Tensor((self.d_model,), "embedding", fan_in=1, fan_out=self.d_model)
        parts: dict[str, Layout | Tensor] = {"class_token": token}
        if self.distillation_token:
            parts["distillation_token"] = token
        parts["patches"] = patch_map(1, self.patch_size, self.d_model)
        return Layout(parts, f"{self.n_frames} frames of {self.n_features} features")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.spectrogram import SpectrogramPatches as Module

        return Module(
            d_model=self.d_model,
            n_frames=self.n_frames,
            n_vectors=self.n_positions,
            patch_size=self.patch_size,
            strides=(self.feature_stride, self.frame_stride),
            distillation_token=self.distillation_token,
            positions=scheme,
            dropout=self.dropout,
        )
