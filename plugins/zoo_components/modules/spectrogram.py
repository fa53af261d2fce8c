"""Patches of spectrograms (Audio Spectrogram Transformer: Gong et al. 2021, arXiv:2104.01778)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.position import PositionScheme
from zoo_components.modules.embedding import Vectors


class SpectrogramPatches(Vectors):
    """dropout([class_token, distillation_token, linear(patches)] + positions)."""

    def __init__(
        self,
        *,
        d_model: int,
        n_frames: int,
        n_vectors: int,
        patch_size: int,
        strides: tuple[int, int],
        distillation_token: bool,
        positions: PositionScheme | None,
        dropout: float,
    ) -> None:
        super().__init__(positions=positions, dropout=dropout)
        self.n_frames, self.n_vectors = n_frames, n_vectors
        self.class_token = nn.Parameter(torch.empty(d_model))
        self.distillation_token = nn.Parameter(torch.empty(d_model)) if distillation_token else None
        self.patches = nn.Conv2d(1, d_model, patch_size, stride=strides)

    def embedded_length(self, length: int) -> int:
        """The number of vectors that a spectrogram becomes. Raises ValueError if it has another
        number of frames than all have."""
        if length != self.n_frames:
            raise ValueError(
                f"this model takes spectrograms of {self.n_frames} frames, not {length}: pad or cut"
            )
        return self.n_vectors

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """Features (batch, n_frames, n_features) to (batch, n_vectors, d_model): the class token,
        the distillation token if there is one, and the patches, feature by feature. Raises
        ValueError for another number of frames."""
        self.embedded_length(x.shape[1])
        patches = self.patches(x.transpose(1, 2)[:, None]).flatten(2).transpose(1, 2)
        learned = (self.class_token, self.distillation_token)
        tokens = torch.stack([token for token in learned if token is not None])
        return torch.cat([tokens.expand(x.shape[0], -1, -1), patches], 1)
