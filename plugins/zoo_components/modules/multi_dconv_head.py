"""Attention with short convolutions of queries, keys and values (So et al. 2021,
arXiv:2109.08668)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zoo.cache import AttentionCache
from zoo_components.modules.convolution import CausalConvolution, convolutions_of
from zoo_components.modules.masks import new_tokens
from zoo_components.modules.self_attention import Common, SelfAttention


class MultiDconvHeadAttention(SelfAttention):
    """A `SelfAttention` of q_conv(q_proj(x)), k_conv(k_proj(x)) and v_conv(v_proj(x)).

    Args:
        kernel_size: of the convolutions, over the token itself and those before it.
    """

    def __init__(self, common: Common, *, kernel_size: int) -> None:
        super().__init__(common)
        inner = self.n_heads * self.head_dim
        self.q_conv = CausalConvolution(inner, kernel_size, bias=False)
        self.k_conv = CausalConvolution(inner, kernel_size, bias=False)
        self.v_conv = CausalConvolution(inner, kernel_size, bias=False)

    def between_tokens(
        self,
        made: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
        cache: AttentionCache | None,
    ) -> Sequence[torch.Tensor]:
        """The convolutions, to which a token that the mask hides is 0.

        Raises:
            ValueError: the mask differs by query or head.
        """
        n_tokens = made[0].shape[-2]
        if cache is not None and mask is not None:
            mask = cache.of_new(mask, n_tokens)
        seen, before = new_tokens(mask, n_tokens), None if cache is None else cache.state
        convolutions = [self.q_conv, self.k_conv, self.v_conv]
        found, after = convolutions_of(convolutions, made, seen, before)
        if cache is not None:
            cache.keep_state(*after)
        return found
