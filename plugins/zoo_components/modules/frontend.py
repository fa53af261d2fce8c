"""Convolutions over the frames of a signal (Whisper: Radford et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from zoo.position import PositionScheme
from zoo_components.modules.dropout import Dropout
from zoo_components.modules.embedding import refuse_types


class ConvFrontend(nn.Module):
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
        super().__init__()
        self.n_convolutions = len(widths)
        for number, ((n_in, n_out), kernel, stride) in enumerate(
            zip(widths, kernel_sizes, strides, strict=True)
        ):
            convolution = nn.Conv1d(n_in, n_out, kernel, stride=stride, padding=kernel // 2)
            self.add_module(str(number), convolution)
        self.gated = gated
        self.scale = scale
        self.positions = positions
        self.dropout = Dropout(dropout)

    def embedded_length(self, length: int) -> int:
        """The number of vectors that this number of frames becomes."""
        for conv in self._convolutions():
            (kernel,), (stride,), padding = conv.kernel_size, conv.stride, int(conv.padding[0])
            length = (length + 2 * padding - kernel) // stride + 1
        return length

    def _convolutions(self) -> list[nn.Conv1d]:
        return [getattr(self, str(number)) for number in range(self.n_convolutions)]

    def forward(
        self,
        features: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """features (batch, frames, n_features) to (batch, embedded_length(frames), d_model).

        positions: (embedded length,); `mask` is ignored.

        Raises:
            ValueError: token types are given.
        """
        refuse_types(token_types)
        x = features.transpose(1, 2)
        for convolution in self._convolutions():
            x = convolution(x)
            x = F.glu(x, dim=1) if self.gated else F.gelu(x)
        x = x.transpose(1, 2)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = self.positions.embed(x, positions)
        return self.dropout(x)
