"""Which tokens of a batch are padding, and what becomes of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from zoo.transformer import expand_mask
from zoo_components.modules.masks import join


class Padding(NamedTuple):
    """How a stack treats padding. Vectors and images have none but what a mask hides.

    Args:
        id: that of padding; None if no id is padding.
        seen: whether padding that no mask hides is seen by attention, and kept among the
            embeddings.
        needed: whether the states of padding are needed, so that no part of a layer leaves it out.
        count_positions: the tokens that positions are counted by: all, or those that are not
            padding or not masked.
    """

    id: int | None
    seen: bool
    needed: bool
    count_positions: Literal["all", "unpadded", "unmasked"]

    def unpadded(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """(batch, length), False at padding; None if nothing is padding by its id."""
        return None if self.id is None or inputs.is_floating_point() else inputs != self.id

    def token_mask(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """The mask (batch, length), False at padding and at tokens that are hidden from all
        queries."""
        return join(by_token(mask), self.unpadded(inputs))

    def attention_mask(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """The mask (batch, 1, 1, length), False at padding; None if attention sees padding, or if
        there is none by its id."""
        return None if self.seen else expand_mask(self.unpadded(inputs))

    def counted(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """The tokens that count for positions, (batch, length); None if all do."""
        if self.count_positions == "unmasked":
            return by_token(mask)
        return self.unpadded(inputs) if self.count_positions == "unpadded" else None


def by_token(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask if it is (batch, length), the same for all queries."""
    return mask if mask is not None and mask.dim() == 2 else None
