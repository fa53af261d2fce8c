"""Attention within tiles of an image (Bai et al. 2025, arXiv:2502.13923)."""

from __future__ import annotations

import torch

from zoo.linear import together
from zoo.position import Rotation
from zoo_components.modules.heads import merge_heads, split_heads
from zoo_components.modules.masks import join
from zoo_components.modules.scores import attend
from zoo_components.modules.self_attention import Common, SelfAttention


class TiledAttention(SelfAttention):
    """A `SelfAttention` in which a token attends to those of its own tile.

    Args:
        tile: the height and the width of a tile, in rows and columns of tokens.
    """

    def __init__(self, common: Common, *, tile: int) -> None:
        super().__init__(common)
        self.tile = tile

    def extra_repr(self) -> str:
        """The heads and the tile, as `print(model)` shows them."""
        return f"{super().extra_repr()}, tile={self.tile}"

    def forward(  # type: ignore[override]  # it reads no tables and has no cache
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        coordinates: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to itself, within tiles.

        Args:
            x: (..., query, d_model).
            memory: as in `SelfAttention.forward`, as are `mask`, `causal`, `rotation`, `bias` and
                `return_weights`.
            positions: of the queries, (query,) or (..., query); by default 0, 1, ....
            coordinates: the row and the column of each query, (..., query, 2), or (1, query, 2) for
                all rows of a batch; by default both are the position.

        Returns:
            (..., query, d_model), and the weights after dropout or None.
        """
        tiles = self.tiles(x, positions, coordinates)
        alike = tiles.dim() == 1 or len(tiles) == 1
        plain = mask is None and bias is None and not causal and not return_weights
        recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
        if plain and alike and not (x.is_meta or recorded):  # whose shapes depend on no values
            return self._by_tile(x, rotation, tiles.flatten()), None
        near = tiles[..., :, None] == tiles[..., None, :]
        near = near if near.dim() == 2 else near.unsqueeze(-3)
        return super().forward(
            x,
            mask=join(mask, near),
            causal=causal,
            rotation=rotation,
            bias=bias,
            return_weights=return_weights,
        )

    def tiles(
        self,
        x: torch.Tensor,
        positions: torch.Tensor | None,
        coordinates: torch.Tensor | None,
    ) -> torch.Tensor:
        """The number of the tile of each query, (query,) or (..., query)."""
        if coordinates is None:
            if positions is None:
                positions = torch.arange(x.shape[-2], device=x.device)
            return positions.div(self.tile, rounding_mode="floor")
        rows, columns = coordinates.div(self.tile, rounding_mode="floor").unbind(-1)
        return rows * (columns.amax() + 1) + columns

    def _by_tile(
        self, x: torch.Tensor, rotation: Rotation | None, tiles: torch.Tensor
    ) -> torch.Tensor:
        """`forward` for tiles (query,), each computed by itself: smaller ones are filled up to the
        largest with tokens that nothing attends to."""
        made = together([self.q_proj, self.k_proj, self.v_proj], x)
        q, k, v = (split_heads(one, self.head_dim) for one in made)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        order = tiles.argsort(stable=True)
        sizes = tiles[order].unique_consecutive(return_counts=True)[1]
        places = torch.arange(int(sizes.max()), device=x.device)
        there = places < sizes[:, None]
        ends = sizes.cumsum(0)
        at = order[((ends - sizes)[:, None] + places).clamp(max=len(order) - 1)]
        mixed, _ = attend(
            *(one[..., at, :].transpose(-4, -3) for one in (q, k, v)),
            scoring=self.scoring,
            training=self.training,
            mask=None if bool(there.all()) else there[:, None, None],
        )
        # Token by token, tile by tile, and in their own order again.
        each = mixed.transpose(-4, -3)[..., there, :]
        return self.o_proj(merge_heads(each[..., order.argsort(), :]))
