"""The gMLP layer (Liu et al. 2021, arXiv:2105.08050)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.linear import Linear, activated
from zoo.position import Rotation
from zoo_components.modules.masks import differs, join, last_keys
from zoo_components.modules.norm import Norm, put_norm


class Gmlp(nn.Module):
    """down_proj(u * (spatial_weight gate_norm(v) + spatial_bias)), where u and v are the halves of
    activation(up_proj(x)), and the weight and the bias are those of the tokens' positions."""

    gate_norm: Norm

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        max_length: int,
        activation: nn.Module,
        gate_norm: nn.Module,
        bias: bool,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        put_norm(self, "gate_norm", gate_norm)
        self.spatial_weight = nn.Parameter(torch.empty(max_length, max_length))
        self.spatial_bias = nn.Parameter(torch.empty(max_length))
        self.down_proj = Linear(d_ff // 2, d_model, bias=bias)

    def extra_repr(self) -> str:
        """The number of positions, as `print(model)` shows it: `max_length=512`."""
        return f"max_length={self.max_length}"

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Gate each token by the tokens that it sees.

        Args:
            x: (..., length, d_model).
            memory: not used: the description refuses one.
            mask: boolean, True = seen, (..., 1, 1 or query, key).
            causal: a token sees no later one; joined with `mask`.
            rotation: not used: the description refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: of the tokens, (length,) or (..., length); by default 0, 1, ....
            cache: what the earlier tokens are mixed by; `x` are the next ones.
            return_weights: not used: the numbers that mix tokens are no weights of a mean.

        Returns:
            (..., length, d_model), and None.

        Raises:
            ValueError: there are more tokens than positions, or the mask differs by head.
        """
        u, v = activated(self.up_proj, self.activation, x).chunk(2, -1)
        v, n_queries = self.gate_norm(v), x.shape[-2]
        places = torch.arange(n_queries, device=x.device)
        of_keys = positions = places if positions is None else positions
        length = n_queries
        if cache is not None:
            v = cache.extend(v.unsqueeze(-3))[0].squeeze(-3)
            length, of_keys = cache.past.length, cache.positions(v.shape[-2])
            places = cache.places(n_queries, v.shape[-2])
        if length > self.max_length:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the layer's {self.max_length} "
                "positions (`max_length` in its spec)"
            )
        seen = last_keys(_for_all_heads(mask), v.shape[-2])
        if causal:
            seen = join(seen, places[:, None] >= torch.arange(v.shape[-2], device=x.device))
        # Hidden tokens may be at position -1, and empty places of a cache beyond the last.
        at, keys_at = (p.clamp(0, self.max_length - 1) for p in (positions, of_keys))
        weight = self.spatial_weight[at[..., :, None], keys_at[..., None, :]]
        if seen is not None:
            weight = weight.masked_fill(~seen, 0.0)
        return self.down_proj(u * (weight @ v + self.spatial_bias[at][..., None])), None


def _for_all_heads(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A mask (..., query, key) of one (..., head, query, key) that is the same for all heads.

    Raises:
        ValueError: it differs by head.
    """
    if mask is None or mask.dim() < 3:
        return mask
    if differs(mask, -3):
        raise ValueError("a layer without heads takes no mask that differs by head")
    return mask[..., 0, :, :]
