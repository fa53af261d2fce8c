"""What mixers of tokens with a state have in common: how they are called."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo.position import Rotation
from zoo_components.modules.masks import new_tokens

State = tuple[torch.Tensor, ...]
"""What the tokens so far have left for those that come next."""


class Recurrent(nn.Module):
    """A mixer of tokens that goes through a sequence once, forwards: `mix` is all that differs."""

    def mix(
        self, x: torch.Tensor, seen: torch.Tensor | None, before: State | None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Mix each token with those before it.

        Args:
            x: (..., length, d_model).
            seen: boolean, (..., length), False at tokens that leave nothing; None if all are seen.
            before: what the tokens before these have left; None at the start.

        Returns:
            (..., length, d_model), and `before` for what comes next.
        """
        raise NotImplementedError

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = True,
        rotation: Rotation | None = None,
        bias: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        cache: AttentionCache | None = None,
        return_weights: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Mix each token with those before it.

        Args:
            x: (..., length, d_model).
            memory: not used: the description refuses one.
            mask: boolean, (..., 1, 1, tokens so far), False = leaves nothing to later tokens.
            causal: not used: the description refuses a stack that is not causal.
            rotation: not used: it refuses position schemes that rotate.
            bias: not used: it refuses those that add a bias.
            positions: not used.
            cache: what the earlier tokens left; `x` are the next ones.
            return_weights: not used: there are no weights.

        Returns:
            (..., length, d_model), and None.

        Raises:
            ValueError: the mask differs by query or head.
        """
        if cache is not None and mask is not None:
            mask = cache.of_new(mask, x.shape[-2])
        seen = new_tokens(mask, x.shape[-2])
        output, after = self.mix(x, seen, None if cache is None else cache.state)
        if cache is not None:
            cache.keep_state(*after)
        return output, None
