"""Attention whose heads are mixed before and after the softmax (Shazeer et al. 2020,
arXiv:2003.02436)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from zoo_components.modules.attention import Mix, MultiHeadAttention


class TalkingHeadsAttention(MultiHeadAttention):
    """A `MultiHeadAttention` with the weights softmax(scores_proj (scale * q k^T) + bias), of which
    weights_proj makes those of the values; both are maps across heads."""

    def add_mixing(self, n_heads: int) -> None:
        """Give the attention its two maps, (n_heads, n_heads)."""
        self.scores_proj = nn.Parameter(torch.empty(n_heads, n_heads))
        self.weights_proj = nn.Parameter(torch.empty(n_heads, n_heads))

    def _mix(self, causal: bool, bias: torch.Tensor | None, return_weights: bool) -> Mix:
        mix = super()._mix(causal, bias, return_weights)
        return partial(mix, mixing=(self.scores_proj, self.weights_proj))
