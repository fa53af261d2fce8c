"""An embedding of the patches of images of any size by a table that is resized to them: the
`embedding` slot."""

from functools import partial
from typing import TYPE_CHECKING

from zoo_components.native_images import GridPatchVectors

if TYPE_CHECKING:
    from torch import nn

    from zoo.position import PositionScheme


class ResizedGridPatchVectors(GridPatchVectors):
    """The embedding `patch_vectors`, with a learned table of the places of patches: dropout(linear(
    patches) + table + positions). The table is a grid that is resized to the rows and columns of
    the image by bilinear interpolation, in which each place takes a share of all those that it
    covers (NaFlex; SigLIP 2: Tschannen et al. 2025, arXiv:2502.14786, section 2.4.2). Of patches
    without a row and a column, both are the position."""

    def build(self, scheme: "PositionScheme | None" = None) -> "nn.Module":
        from zoo_components.modules.resized_grid import ResizedGridPatchVectors as Module

        return self._module(partial(Module, grid_size=self.grid_size), scheme)
