"""The gated linear unit that maps the states of images to the width of a decoder."""

from __future__ import annotations

import torch
from torch import nn

from zoo.linear import Linear, activated
from zoo_components.modules.image_text import Projector


class GatedProjector(Projector):
    """down(activation(gate(y)) * up(y)) with y = norm(merge_proj(merged(x))).

    Args:
        plain: what else it is made of.
        gate_proj: the map whose output the activation takes.
        activation: that of the gate.
    """

    gate_proj: Linear

    def __init__(self, plain: Projector, gate_proj: Linear, activation: nn.Module) -> None:
        maps = {
            "up_proj": plain.up_proj,
            "activation": activation,
            "gate_proj": gate_proj,
            "down_proj": plain.down_proj,
        }
        merging, merge_proj = plain.merging, plain.merge_proj
        super().__init__(merging=merging, merge_proj=merge_proj, norm=plain.norm, maps=maps)

    def mapped(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_merged) to (..., d_out)."""
        return self.down_proj(activated(self.gate_proj, self.activation, x) * self.up_proj(x))
