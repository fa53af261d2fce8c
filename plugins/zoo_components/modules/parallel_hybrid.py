"""Attention and a mixer with a state side by side (Falcon-H1: Zuo et al. 2025,
arXiv:2507.22448)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo.cache import AttentionCache
from zoo_components.modules.block import Branch


class ParallelHybrid(nn.Module):
    """The sum of scale * post_norm(f(pre_norm(x))) for both f, `attention` and `recurrence`, which
    hold these norms."""

    attention: Branch
    recurrence: Branch

    def __init__(
        self, attention: nn.Module, recurrence: nn.Module, *, scales: Mapping[str, float]
    ) -> None:
        super().__init__()
        self.add_module("attention", attention)
        self.add_module("recurrence", recurrence)
        self.scales = dict(scales)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        causal: bool = True,
        cache: AttentionCache | None = None,
        **of_attention: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend, and go through the sequence.

        Args:
            x: (..., length, d_model).
            memory: not used: the description refuses one.
            mask: as both take it.
            causal: likewise.
            cache: where the attention keeps keys and values, and the mixer its state.
            of_attention: what the attention alone is given, such as `rotation`.

        Returns:
            (..., length, d_model), and the attention's weights or None.
        """
        given: dict[str, Any] = {"mask": mask, "causal": causal}
        if cache is not None:
            given["cache"] = cache
        attended, weights = self._branch("attention", x, **given, **of_attention)
        mixed, _ = self._branch("recurrence", x, **given)
        return attended + mixed, weights

    def _branch(
        self, name: str, x: torch.Tensor, **given: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output of one of the two, scaled, and its weights if it was asked for them."""
        f: Branch = getattr(self, name)
        y, weights = f(f.pre_norm(x), **given)
        y, scale = f.post_norm(y), self.scales[name]
        return (y if scale == 1.0 else y * scale), weights
