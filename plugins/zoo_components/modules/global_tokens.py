"""Attention with global tokens (Beltagy et al. 2020, arXiv:2004.05150)."""

from __future__ import annotations

from typing import ClassVar

import torch

from zoo.position import Rotation
from zoo.sharding.parts import all_parts, own_part
from zoo_components.modules.attention import MultiHeadAttention
from zoo_components.modules.masks import join
from zoo_components.modules.unpadding import places_of_tokens


class GlobalTokensAttention(MultiHeadAttention):
    """A `MultiHeadAttention` of a sequence to itself in which global tokens attend to all tokens,
    by maps of their own, and all attend to them (Beltagy et al. 2020, section 3.1)."""

    map_sets: ClassVar[tuple[str, ...]] = ("", "global_")
    first_is_global: bool = False
    """Whether the first token is a global one in a call that names none."""

    def forward(  # type: ignore[override]  # without cache and keys, as its description declares
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        global_tokens: torch.Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `x` to itself.

        Args:
            x: (..., query, d_model).
            memory: not used: the description refuses one.
            global_tokens: boolean, (..., query), True = attends to all and is attended to by all,
                as far as `mask` allows. By default none or, with `first_is_global`, the first one.
            mask, causal, rotation, bias, positions, return_weights: see `MultiHeadAttention`.

        Returns:
            (..., query, d_out), and the weights after dropout or None.
        """
        if global_tokens is None and self.first_is_global:
            global_tokens = (torch.arange(x.shape[-2], device=x.device) == 0).expand(x.shape[:-1])
        if global_tokens is None:
            return super().forward(
                x,
                mask=mask,
                causal=causal,
                rotation=rotation,
                bias=bias,
                positions=positions,
                return_weights=return_weights,
            )
        places = None if return_weights else places_of_tokens(x, mask, self)
        if positions is None and self.needs_positions:
            positions = torch.arange(x.shape[-2], device=x.device)
        mask, bias = own_part(mask, -3, self.q_proj), own_part(bias, -3, self.q_proj)
        mix = self._mix(causal, bias, return_weights)
        q, k, v = self._heads(x, None, rotation, positions, None, None, places)
        near = self._within_reach(None, x.shape[-2], positions, None)
        if near is not None:
            near = near | global_tokens[..., None, None, :]
        others = mix(q, k, v, mask=join(mask, near))
        q, *of_keys = self._projected("q" + self.of_keys, x, places, "global_")
        k, v = self._keys_and_values(rotation, *of_keys)
        q = self.preparation.query(q, self.q_norm, rotation, positions)
        mixed, weights = at_global_tokens(global_tokens, mix(q, k, v, mask=mask), others)
        return self._output(x, mixed, places), all_parts(weights, -3, self.q_proj)


def at_global_tokens(
    global_tokens: torch.Tensor,
    theirs: tuple[torch.Tensor, torch.Tensor | None],
    others: tuple[torch.Tensor, torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Outputs and weights: `theirs` for the queries that are global tokens, (..., query), and
    `others` for all others (Beltagy et al. 2020, arXiv:2004.05150, section 3.1)."""
    mine = global_tokens[..., None, :, None]
    mixed = torch.where(mine, theirs[0], others[0])
    if theirs[1] is None or others[1] is None:
        return mixed, None
    return mixed, torch.where(mine, theirs[1], others[1])
