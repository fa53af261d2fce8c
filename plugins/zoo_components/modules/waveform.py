"""Convolutions over the samples of a sound (wav2vec 2.0: Baevski et al. 2020; Moonshine: Jeffries
et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from zoo.linear import Linear
from zoo.position import PositionScheme
from zoo_components.modules.embedding import Vectors, refuse_types
from zoo_components.modules.norm import Norm, put_norm, widen

EPS = 1e-5
"""What the norms of convolutions add to the variance."""


class Convolution(nn.Conv1d):
    """gelu(norm(convolution(x))), without padding. The norm is `group`, each channel over all time,
    `layer`, the channels of each vector, or None."""

    def __init__(
        self, n_in: int, n_out: int, kernel_size: int, *, stride: int, bias: bool, norm: str | None
    ) -> None:
        super().__init__(n_in, n_out, kernel_size, stride=stride, bias=bias)
        self.over_time = norm == "group"
        self.norm: nn.Module | None = None
        if norm is not None:
            self.norm = nn.GroupNorm(n_out, n_out, EPS) if self.over_time else nn.LayerNorm(n_out)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(batch, in channels, length) to (batch, out channels, shortened length)."""
        x = super().forward(input)
        if self.norm is not None:
            x = self.norm(x) if self.over_time else self.norm(x.transpose(1, 2)).transpose(1, 2)
        return F.gelu(x)


class PositionConvolution(nn.Module):
    """gelu(norm(convolution(x))) of the same length, whose groups of channels are convolved by
    themselves. With `weight_norm`, the weights are those of `weight`, of which those of each place
    in the kernel are scaled to the length that `gain` has for it, and there is no other norm.
    """

    def __init__(self, width: int, kernel_size: int, *, groups: int, weight_norm: bool) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.empty(width, width // groups, kernel_size))
        self.bias = nn.Parameter(torch.empty(width))
        self.gain = nn.Parameter(torch.empty(1, 1, kernel_size)) if weight_norm else None

    def extra_repr(self) -> str:
        """The sizes, as `print(model)` shows them: `768, kernel_size=128, groups=16`."""
        width, _, kernel_size = self.weight.shape
        return f"{width}, kernel_size={kernel_size}, groups={self.groups}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        # Of an even kernel, the half before a vector is the longer one.
        kernel_size = self.weight.shape[2]
        y = F.conv1d(
            x.transpose(1, 2),
            self.scaled_weight(),
            self.bias,
            padding=kernel_size // 2,
            groups=self.groups,
        )
        y = y[..., : x.shape[1]].transpose(1, 2)
        return F.gelu(y if self.gain is not None else F.layer_norm(y, y.shape[-1:], eps=EPS))

    def scaled_weight(self) -> torch.Tensor:
        """The weights of the convolution, (width, width / groups, kernel_size)."""
        if self.gain is None:
            return self.weight
        weight = widen(self.weight)
        length = weight.square().sum((0, 1), keepdim=True).sqrt()
        return (weight * (widen(self.gain) / length)).to(self.weight.dtype)


class OfSamples(Vectors):
    """Vectors that `convolutions` make of samples; of fewer than `shortest` they make none."""

    def __init__(
        self,
        convolutions: Iterable[nn.Conv1d],
        *,
        shortest: int,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        self.convolutions = nn.ModuleList(convolutions)
        self.shortest = shortest

    def embedded_length(self, length: int) -> int:
        """The number of vectors that this number of samples becomes.

        Raises:
            ValueError: it becomes none.
        """
        if length < self.shortest:
            raise ValueError(
                f"a sound of {length} samples is too short: the model takes {self.shortest} at "
                "least"
            )
        for convolution in cast("list[nn.Conv1d]", list(self.convolutions)):
            length = (length - convolution.kernel_size[0]) // convolution.stride[0] + 1
        return length


class Waveform(OfSamples):
    """dropout(norm(y + position_convolutions(y))) with
    y = projection(feature_norm(convolutions(x))), and the positions of a scheme before the norm."""

    feature_norm: Norm
    norm: Norm

    def __init__(
        self,
        *,
        convolutions: Sequence[Convolution],
        feature_norm: nn.Module,
        d_conv: int,
        shortest: int,
        d_model: int,
        position_convolutions: Sequence[PositionConvolution],
        positions: PositionScheme | None,
        norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__(convolutions, shortest=shortest, positions=positions, dropout=dropout)
        put_norm(self, "feature_norm", feature_norm)
        self.projection = Linear(d_conv, d_model)
        self.position_convolutions = nn.ModuleList(position_convolutions)
        put_norm(self, "norm", norm)

    def forward(
        self,
        waveforms: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """waveforms (batch, samples, 1) to (batch, embedded_length(samples), d_model).

        positions: (embedded length,); `mask` is (batch, embedded length), False at padding, whose
        vectors then are 0 before the convolutions for positions, as in `transformers`.

        Raises:
            ValueError: token types are given.
        """
        refuse_types(token_types)
        x = waveforms.transpose(1, 2)
        for convolution in self.convolutions:
            x = convolution(x)
        x = self.projection(self.feature_norm(x.transpose(1, 2)))
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)
        near = x
        for convolution in self.position_convolutions:
            near = convolution(near)
        if self.position_convolutions:
            x = x + near
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        return self.dropout(self.norm(x))


class WaveformStem(OfSamples):
    """dropout(convolutions(x) + positions), of which the first is followed by tanh and a norm of
    the whole sound, and the others by GELU."""

    def __init__(
        self,
        *,
        channels: Sequence[tuple[int, int]],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        eps: float,
        shortest: int,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        sizes = zip(channels, kernel_sizes, strides, strict=True)
        convolutions = (
            nn.Conv1d(n_in, n_out, kernel, stride=stride, bias=number > 0)
            for number, ((n_in, n_out), kernel, stride) in enumerate(sizes)
        )
        super().__init__(convolutions, shortest=shortest, positions=positions, dropout=dropout)
        self.norm = nn.GroupNorm(1, channels[0][1], eps)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """Waveforms (batch, samples, 1) to (batch, embedded_length(samples), d_model). The norm is
        of padding too, as in `transformers`."""
        first, *others = self.convolutions
        x = self.norm(first(x.transpose(1, 2)).tanh())
        for convolution in others:
            x = F.gelu(convolution(x))
        return x.transpose(1, 2)
