"""Embeddings of signals, such as audio: the `embedding` slot."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, Size, contradiction
from zoo.layout import Layout, linear
from zoo.slots import Embedding
from zoo_components.convolution import convolution
from zoo_components.embedding import OfFeatures, scale_factor

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme

Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
MOST_CONVOLUTIONS = 64
"""A layout lists each convolution, before the parameters of the model are counted."""


class OfSignals(Embedding):
    """What embeddings have in common whose convolutions make vectors of signals: each vector is of
    several frames or samples, so that none can be made of the next one alone."""

    takes_ids: ClassVar[bool] = False
    site: ClassVar[str] = "frontend"

    @property
    def incremental(self) -> bool:
        return False

    @property
    def looks_ahead(self) -> bool:
        return True


class ConvFrontend(OfSignals, OfFeatures):
    """1-d convolutions over the frames of a signal, which shorten it: the model is called with
    features (batch, frames, n_features). dropout(scale * convolutions(x) + positions), each
    convolution padded with zeros by half its kernel (Whisper: Radford et al. 2022,
    arXiv:2212.04356)."""

    example: ClassVar[Mapping[str, Any]] = {"n_features": 16, "strides": [1, 1]}
    kernel_sizes: Sizes = (3, 3)
    """The kernel size of each convolution, in frames."""
    strides: Sizes = (1, 2)
    """The stride of each convolution, in frames."""
    d_conv: Size = Field(default_factory=lambda data: data["d_model"])
    """The width between convolutions; after the last it is d_model."""
    activation: Literal["gelu", "glu"] = "gelu"
    """The activation after each convolution: GELU, or a gated linear unit, whose gate is the second
    half of the convolution's outputs (Dauphin et al. 2016, arXiv:1612.08083; speech-to-text of
    fairseq)."""
    scale: PositiveFloat | Literal["sqrt_d_model"] = 1.0
    """The factor that multiplies the vectors before positions are added."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_convolutions(self.kernel_sizes, self.strides)
        return self

    def most_inputs(self, n_vectors: int) -> int:
        for kernel, stride in zip(reversed(self.kernel_sizes), reversed(self.strides), strict=True):
            n_vectors = n_vectors * stride - 1 + kernel - 2 * (kernel // 2)
        return n_vectors

    @property
    def widths(self) -> list[tuple[int, int]]:
        """The input and output channels of each convolution; with `glu`, there are twice as many
        output channels as the activation returns."""
        after = [*[self.d_conv] * (len(self.kernel_sizes) - 1), self.d_model]
        gated = 2 if self.activation == "glu" else 1
        return [(a, gated * b) for a, b in zip([self.n_features, *after], after, strict=False)]

    def layout(self) -> Layout:
        sizes = zip(self.widths, self.kernel_sizes, strict=True)
        parts = {
            str(number): convolution(n_in, n_out, kernel, bias=True)
            for number, ((n_in, n_out), kernel) in enumerate(sizes)
        }
        return Layout(parts, f"n_features {self.n_features}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.frontend import ConvFrontend as Module

        return Module(
            widths=self.widths,
            kernel_sizes=self.kernel_sizes,
            strides=self.strides,
            gated=self.activation == "glu",
            scale=scale_factor(self.scale, self.d_model),
            positions=scheme,
            dropout=self.dropout,
        )


class Conv2dFrontend(OfSignals, OfFeatures):
    """2-d convolutions over the frames and the features of a spectrogram, which shorten both: the
    model is called with features (batch, frames, n_features).
    dropout(scale * projection(convolutions(x)) + positions), where each convolution is followed by
    ReLU, and the projection maps the channels of all that is left of the features of a frame. The
    first convolution makes the channels; the others are each one kernel for each channel, and a
    linear map of the channels (Fast Conformer: Rekesh et al. 2023, arXiv:2305.05084)."""

    example: ClassVar[Mapping[str, Any]] = {"n_features": 5, "n_convolutions": 2, "stride": 1}
    n_convolutions: Size = Field(default=3, le=MOST_CONVOLUTIONS)
    """The number of convolutions."""
    kernel_size: Size = 3
    """The frames and the features of each kernel. Both are padded with zeros on either side, by
    half of the kernel size less one."""
    stride: Size = 2
    """The stride of each convolution, over frames and over features."""
    channels: Size = 256
    """The output channels of each convolution."""
    scale: PositiveFloat | Literal["sqrt_d_model"] = 1.0
    """The factor that multiplies the vectors before positions are added."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.features_left < 1:
            raise contradiction(
                f"convolutions with kernels of {self.kernel_size} leave nothing of "
                f"{self.n_features} features",
                "n_features",
                "kernel_size",
                "n_convolutions",
            )
        return self

    @property
    def features_left(self) -> int:
        """The number of features behind the last convolution."""
        left = self.n_features
        for _ in range(self.n_convolutions):
            left = (left + 2 * self.padding - self.kernel_size) // self.stride + 1
        return left

    @property
    def padding(self) -> int:
        """The zeros on either side."""
        return (self.kernel_size - 1) // 2

    def most_inputs(self, n_vectors: int) -> int:
        for _ in range(self.n_convolutions):
            n_vectors = n_vectors * self.stride - 1 + self.kernel_size - 2 * self.padding
        return n_vectors

    def layout(self) -> Layout:
        channels, size = self.channels, self.kernel_size
        first = convolution(1, channels, size, size, bias=True)
        other = Layout(
            {
                "depthwise": convolution(
                    channels, channels, size, size, bias=True, groups=channels
                ),
                "pointwise": convolution(channels, channels, 1, 1, bias=True),
            }
        )
        convolutions = {str(n): other if n else first for n in range(self.n_convolutions)}
        parts = {
            "convolutions": Layout(convolutions),
            "projection": linear(channels * self.features_left, self.d_model),
        }
        return Layout(parts, f"n_features {self.n_features}")

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.frontend import Conv2dFrontend as Module

        return Module(
            n_convolutions=self.n_convolutions,
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            channels=self.channels,
            features_left=self.features_left,
            d_model=self.d_model,
            scale=scale_factor(self.scale, self.d_model),
            positions=scheme,
            dropout=self.dropout,
        )


def check_convolutions(kernel_sizes: Sequence[int], strides: Sequence[int]) -> None:
    """Raise an error of the fields of these names if convolutions have no stride, or more."""
    if len(kernel_sizes) != len(strides):
        raise contradiction(
            f"there are {len(kernel_sizes)} kernel sizes and {len(strides)} strides",
            "kernel_sizes",
            "strides",
        )
