"""Attention to the keys and values of an earlier layer (Brandon et al. 2024, arXiv:2405.12981)."""

from __future__ import annotations

import torch

from zoo.cache import AttentionCache
from zoo.context import SharedKeys
from zoo.position import Rotation
from zoo.sharding.parts import part_for
from zoo_components.modules.attention import MultiHeadAttention


class CrossLayerAttention(MultiHeadAttention):
    """A `MultiHeadAttention` with a map to queries alone, which attends to the `keys` and values
    that another layer has put there. Its `cache` knows the positions of the tokens, and keeps
    nothing."""

    def _heads(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None,
        rotation: Rotation | None,
        positions: torch.Tensor | None,
        keys: SharedKeys | None,
        cache: AttentionCache | None,
        places: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if keys is None:
            raise ValueError("this attention needs the `keys` of another layer")
        (q,) = self._projected("q", x, places)
        k, v, mesh = keys.get()
        k, v = (part_for(heads, -3, self.q_proj, mesh) for heads in (k, v))
        return self.preparation.query(q, self.q_norm, rotation, positions), k, v
