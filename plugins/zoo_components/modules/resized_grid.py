"""Patches of images of any size with a table that is resized to them (SigLIP 2)."""

from __future__ import annotations

import torch

from zoo_components.modules.native_images import GridPatchVectors


class ResizedGridPatchVectors(GridPatchVectors):
    """`PlacedPatchVectors` of a learned table of (grid_size, grid_size) vectors, resized to the
    image."""

    def placed(self, coordinates: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `PlacedPatchVectors.placed`: the shares of all vectors of the grid. They are computed
        and summed in float32, or float64 for a float64 model."""
        exact = torch.promote_types(dtype, torch.float32)
        numbers = coordinates.amax(-2, keepdim=True).clamp(min=0) + 1
        scale = self.grid_size / numbers.to(exact)  # how many of the grid a patch covers
        centers = (coordinates.clamp(min=0) + 0.5) * scale
        places = torch.arange(self.grid_size, device=coordinates.device) + 0.5
        apart = (places - centers[..., None]).abs() / scale.clamp(min=1)[..., None]
        shares = (1 - apart).clamp(min=0)
        rows, columns = (shares / shares.sum(-1, keepdim=True)).unbind(-2)
        each = (rows[..., :, None] * columns[..., None, :]).flatten(-2)
        return (each @ self.grid.weight.to(exact)).to(dtype)
