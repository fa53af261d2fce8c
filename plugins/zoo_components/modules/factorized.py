"""An embedding of the patches of images of any size by their rows and columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo_components.modules.embedding import refuse_types
from zoo_components.modules.native_images import PatchVectors


class FactorizedPatchVectors(PatchVectors):
    """dropout(linear(patches) + rows[row] + columns[column] + positions); if `centered`, of patches
    2 x - 1 (Dehghani et al. 2023, arXiv:2307.06304)."""

    axes = 2

    def __init__(self, *, max_patches: int, centered: bool, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.centered = centered
        self.rows = nn.Embedding(max_patches, d_model)
        self.columns = nn.Embedding(max_patches, d_model)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """As `PatchVectors.vectors`."""
        return super().vectors(2 * (x - 0.5) if self.centered else x)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        token_types: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `PatchVectors.forward`; `coordinates` are the row and the column of each patch, (batch
        or 1, length, 2), or both are the position if None."""
        refuse_types(token_types)
        if coordinates is None:
            coordinates = positions[..., None].expand(*positions.shape, 2)
        rows, columns = coordinates.clamp(min=0).unbind(-1)
        return self.positioned(
            self.vectors(x) + (self.rows(rows) + self.columns(columns)), positions
        )
