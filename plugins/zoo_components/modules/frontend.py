"""Convolutions over the frames of a signal (Whisper: Radford et al. 2022; Fast Conformer: Rekesh et
al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo_components.modules.embedding import Vectors


class ConvFrontend(Vectors):
    """dropout(scale * convolutions(x) + positions)."""

    def __init__(
        self,
        *,
        widths: Sequence[tuple[int, int]],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        gated: bool,
        scale: float,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        self.n_convolutions = len(widths)
        for number, ((n_in, n_out), kernel, stride) in enumerate(
            zip(widths, kernel_sizes, strides, strict=True)
        ):
            convolution = nn.Conv1d(n_in, n_out, kernel, stride=stride, padding=kernel // 2)
            self.add_module(str(number), convolution)
        self.gated = gated
        self.scale = scale

    def embedded_length(self, length: int) -> int:
        """The number of vectors that this number of frames becomes."""
        for conv in self._convolutions():
            (kernel,), (stride,), padding = conv.kernel_size, conv.stride, int(conv.padding[0])
            length = (length + 2 * padding - kernel) // stride + 1
        return length

    def _convolutions(self) -> list[nn.Conv1d]:
        return [getattr(self, str(number)) for number in range(self.n_convolutions)]

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """Features (batch, frames, n_features) to (batch, embedded_length(frames), d_model)."""
        x = x.transpose(1, 2)
        for convolution in self._convolutions():
            x = convolution(x)
            x = F.glu(x, dim=1) if self.gated else F.gelu(x)
        x = x.transpose(1, 2)
        return x if self.scale == 1.0 else x * self.scale


class SeparableConv2d(nn.Module):
    """pointwise(depthwise(x)): one kernel for each channel, then a linear map of the channels."""

    def __init__(self, channels: int, kernel_size: int, *, stride: int, padding: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels, channels, kernel_size, stride=stride, padding=padding, groups=channels
        )
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, frames, features) to the same with fewer frames and features."""
        return self.pointwise(self.depthwise(x))


class Conv2dFrontend(Vectors):
    """dropout(scale * projection(convolutions(x)) + positions), each convolution followed by
    ReLU."""

    def __init__(
        self,
        *,
        n_convolutions: int,
        kernel_size: int,
        stride: int,
        padding: int,
        channels: int,
        features_left: int,
        d_model: int,
        scale: float,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.convolutions = nn.ModuleList(
            SeparableConv2d(channels, kernel_size, stride=stride, padding=padding)
            if number
            else nn.Conv2d(1, channels, kernel_size, stride=stride, padding=padding)
            for number in range(n_convolutions)
        )
        self.projection = Linear(channels * features_left, d_model)
        self.scale = scale

    def embedded_length(self, length: int) -> int:
        """The number of vectors that this number of frames becomes.

        Raises:
            ValueError: it becomes none.
        """
        n_vectors = length
        for _ in self.convolutions:
            n_vectors = (n_vectors + 2 * self.padding - self.kernel_size) // self.stride + 1
            if n_vectors < 1:
                raise ValueError(f"{length} frames are too few for the convolutions of this model")
        return n_vectors

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """Features (batch, frames, n_features) to (batch, embedded_length(frames), d_model). The
        convolutions read padding too: a mask would have to tell them its frames."""
        x = x[:, None]
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        x = self.projection(x.transpose(1, 2).flatten(2))
        return x if self.scale == 1.0 else x * self.scale
