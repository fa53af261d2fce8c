"""An embedding of the patches of images of any size by their rows and columns."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo_components.modules.native_images import PlacedPatchVectors


class FactorizedPatchVectors(PlacedPatchVectors):
    """`PlacedPatchVectors` of rows[row] + columns[column]; if `centered`, of patches 2 x - 1
    (Dehghani et al. 2023, arXiv:2307.06304)."""

    def __init__(self, *, max_patches: int, centered: bool, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.centered = centered
        self.rows = nn.Embedding(max_patches, d_model)
        self.columns = nn.Embedding(max_patches, d_model)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """As `PatchVectors.vectors`."""
        return super().vectors(2 * (x - 0.5) if self.centered else x)

    def placed(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `PlacedPatchVectors.placed`."""
        rows, columns = coordinates.clamp(min=0).unbind(-1)
        found: torch.Tensor = self.rows(rows) + self.columns(columns)
        return found
