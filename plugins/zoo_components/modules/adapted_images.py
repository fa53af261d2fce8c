"""The three linear maps that bring the states of images to the width of a decoder."""

from __future__ import annotations

import torch

from zoo.linear import Linear, activated
from zoo_components.modules.image_text import Projector


class AdaptedProjector(Projector):
    """down(activation(mid(activation(up(y))))) with y = norm(merge_proj(merged(x))).

    Args:
        plain: what else it is made of.
        mid_proj: the second of the maps.
    """

    mid_proj: Linear

    def __init__(self, plain: Projector, mid_proj: Linear) -> None:
        maps = {
            "up_proj": plain.up_proj,
            "activation": plain.activation,
            "mid_proj": mid_proj,
            "down_proj": plain.down_proj,
        }
        merging, merge_proj = plain.merging, plain.merge_proj
        super().__init__(merging=merging, merge_proj=merge_proj, norm=plain.norm, maps=maps)

    def mapped(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_merged) to (..., d_out)."""
        x = activated(self.up_proj, self.activation, x)
        return self.down_proj(activated(self.mid_proj, self.activation, x))
