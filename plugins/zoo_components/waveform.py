"""Embeddings of sound: the `embedding` slot."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from zoo.component import PositiveFloat, Probability, Shared, Size, Slot, contradiction
from zoo.layout import Layout, Tensor, linear, vector
from zoo.only_with import UNSTATED, NotWith, stated
from zoo.slots import Norm
from zoo_components.convolution import convolution
from zoo_components.frontend import MOST_CONVOLUTIONS, OfSignals, Sizes, check_convolutions

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class OfSamples(OfSignals):
    """What embeddings have in common whose convolutions, which pad nothing, read the samples of
    waveforms (batch, samples, 1)."""

    if TYPE_CHECKING:  # each has these fields in its own place
        kernel_sizes: Sizes
        strides: Sizes

    @model_validator(mode="after")
    def _check_convolutions(self) -> Self:
        check_convolutions(self.kernel_sizes, self.strides)
        return self

    @property
    def input_width(self) -> int:
        return 1

    @property
    def shortest_sound(self) -> int:
        length = 1
        for kernel, stride in zip(reversed(self.kernel_sizes), reversed(self.strides), strict=True):
            length = (length - 1) * stride + kernel
        return length


class Waveform(OfSamples):
    """Convolutions over the samples of a sound, which shorten it, and over the vectors that they
    make, for positions: the model is called with waveforms (batch, samples, 1). With
    y = projection(feature_norm(convolutions(x))), in which the vectors of padding become 0, it is
    dropout(norm(y + position_convolutions(y))); each convolution is followed by GELU (wav2vec 2.0:
    Baevski et al. 2020, arXiv:2006.11477, section 2)."""

    sum_norm: ClassVar[str] = "norm"
    example: ClassVar[Mapping[str, Any]] = {
        "d_conv": 6,
        "kernel_sizes": [3, 2],
        "strides": [1, 1],
        "position_kernel_size": 4,
        "position_groups": 1,
    }
    d_conv: Size = 512
    """The output channels of each convolution."""
    kernel_sizes: Sizes = (10, 3, 3, 3, 3, 2, 2)
    """The kernel size of each convolution, the first in samples. Nothing is padded."""
    strides: Sizes = (5, 2, 2, 2, 2, 2, 2)
    """The stride of each convolution."""
    bias: bool = False
    """Whether the convolutions have a bias."""
    conv_norm: Literal["group", "layer"] = "group"
    """The norm of what convolutions make, before GELU: of the first one alone, each channel over
    all time (`group`), or of each convolution, the channels of each vector (`layer`)."""
    feature_norm: Annotated[Norm, Slot("norm", width="d_conv")]
    """The norm before the projection to d_model."""
    position_layers: int = Field(default=1, ge=0, le=MOST_CONVOLUTIONS)
    """The number of convolutions for positions, one after the other; 0 for none."""
    position_kernel_size: Annotated[Size | None, NotWith("position_layers", 0, default=128)] = (
        UNSTATED
    )
    """The kernel size of each of these, which are padded with zeros to keep the length."""
    position_groups: Annotated[Size | None, NotWith("position_layers", 0, default=16)] = UNSTATED
    """The number of groups of channels that each of these convolves by themselves."""
    position_norm: Annotated[
        Literal["weight", "layer"] | None, NotWith("position_layers", 0, default="weight")
    ] = UNSTATED
    """What these are normalised by: the weights of each place in the kernel are scaled to a learned
    length (`weight`: Salimans and Kingma 2016, arXiv:1602.07868), or a layer norm without weights
    comes before GELU (`layer`: data2vec, arXiv:2202.03555)."""
    norm: Annotated[Norm, Slot("norm", default="none", inherit=False, width="d_model")]
    """The norm after the sum, as in models whose layers are post-norm."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.position_groups and self.d_model % self.position_groups:
            raise contradiction(
                f"d_model = {self.d_model} cannot be divided into {self.position_groups} groups",
                "position_groups",
                "d_model",
            )
        return self

    def layout(self) -> Layout:
        convolutions = {
            str(number): self._convolution(number, kernel)
            for number, kernel in enumerate(self.kernel_sizes)
        }
        parts = {
            "convolutions": Layout(convolutions),
            "feature_norm": self.feature_norm.layout(),
            "projection": linear(self.d_conv, self.d_model),
            "position_convolutions": Layout(
                {str(number): self._position_layer() for number in range(self.position_layers)}
            ),
            "norm": self.norm.layout(),
        }
        return Layout(parts)

    def _convolution(self, number: int, kernel: int) -> Layout:
        whole = convolution(self.n_inputs(number), self.d_conv, kernel, bias=self.bias)
        return whole.with_parts(norm=_norm(self.d_conv)) if self.normed(number) else whole

    def _position_layer(self) -> Layout:
        width, groups, kernel = self.d_model, self.groups, self.kernel
        whole = convolution(width, width, kernel, bias=True, groups=groups)
        if self.position_norm != "weight":
            return whole
        # The lengths of normal weights with the variance 4 / (kernel * d_model), as in fairseq.
        length = 2 * (width / (groups * kernel)) ** 0.5
        return whole.with_parts(gain=Tensor((1, 1, kernel), "constant", length))

    def n_inputs(self, number: int) -> int:
        """The input channels of the convolution of this number."""
        return self.d_conv if number else 1

    def normed(self, number: int) -> bool:
        """Whether a norm follows the convolution of this number."""
        return self.conv_norm == "layer" or number == 0

    @property
    def groups(self) -> int:
        """`position_groups`, of an embedding that has these convolutions."""
        return stated(self.position_groups)

    @property
    def kernel(self) -> int:
        """`position_kernel_size`, likewise."""
        return stated(self.position_kernel_size)

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.waveform import Convolution, PositionConvolution
        from zoo_components.modules.waveform import Waveform as Module

        return Module(
            convolutions=[
                Convolution(
                    self.n_inputs(number),
                    self.d_conv,
                    kernel,
                    stride=stride,
                    bias=self.bias,
                    norm=self.conv_norm if self.normed(number) else None,
                )
                for number, (kernel, stride) in enumerate(
                    zip(self.kernel_sizes, self.strides, strict=True)
                )
            ],
            feature_norm=self.feature_norm.build(),
            d_conv=self.d_conv,
            shortest=self.shortest_sound,
            d_model=self.d_model,
            position_convolutions=[
                PositionConvolution(
                    self.d_model,
                    self.kernel,
                    groups=self.groups,
                    weight_norm=self.position_norm == "weight",
                )
                for _ in range(self.position_layers)
            ],
            positions=scheme,
            norm=self.norm.build(),
            dropout=self.dropout,
        )


class WaveformStem(OfSamples):
    """Convolutions over the samples of a sound, which shorten it: the model is called with
    waveforms (batch, samples, 1). dropout(convolutions(x) + positions), where the first
    convolution, which has no bias, is followed by tanh and a norm of the whole sound, all times and
    channels together, and each other one by GELU (Moonshine: Jeffries et al. 2024,
    arXiv:2410.15608, section 3.1)."""

    example: ClassVar[Mapping[str, Any]] = {
        "widths": [6, 8],
        "kernel_sizes": [3, 2, 1],
        "strides": [1, 1, 1],
    }
    widths: tuple[Size, ...] = Field(
        default_factory=lambda data: (data["d_model"], 2 * data["d_model"])
    )
    """The output channels of each convolution but the last, which makes d_model."""
    kernel_sizes: Sizes = (127, 7, 3)
    """The kernel size of each convolution, the first in samples. Nothing is padded."""
    strides: Sizes = (64, 3, 2)
    """The stride of each convolution."""
    eps: PositiveFloat = 1e-5
    """Added to the variance of the norm."""
    dropout: Shared[Probability] = 0.0
    """Dropout after the sum."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.kernel_sizes) != len(self.widths) + 1:
            raise contradiction(
                f"{len(self.kernel_sizes)} convolutions have {len(self.kernel_sizes) - 1} `widths` "
                f"beside d_model, and there are {len(self.widths)}",
                "widths",
                "kernel_sizes",
            )
        return self

    @property
    def channels(self) -> list[tuple[int, int]]:
        """The input and output channels of each convolution."""
        after = [*self.widths, self.d_model]
        return list(zip([1, *after], after, strict=False))

    def layout(self) -> Layout:
        sizes = zip(self.channels, self.kernel_sizes, strict=True)
        convolutions = {
            str(number): convolution(n_in, n_out, kernel, bias=number > 0)
            for number, ((n_in, n_out), kernel) in enumerate(sizes)
        }
        norm = _norm(self.channels[0][1])
        return Layout({"convolutions": Layout(convolutions), "norm": norm})

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.waveform import WaveformStem as Module

        return Module(
            channels=self.channels,
            kernel_sizes=self.kernel_sizes,
            strides=self.strides,
            eps=self.eps,
            shortest=self.shortest_sound,
            positions=scheme,
            dropout=self.dropout,
        )


def _norm(n_channels: int) -> Layout:
    """The layout of an `nn.GroupNorm` or `nn.LayerNorm` of this number of channels."""
    return Layout({"weight": vector(n_channels, value=1.0), "bias": vector(n_channels, "bias")})
