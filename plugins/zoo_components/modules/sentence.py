"""Sentence embeddings (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from zoo_components.modules.classifier import pool


class SentenceEmbedding(nn.Module):
    """normalize(activation(dense(hidden(pool(x)))))."""

    def __init__(
        self,
        *,
        pooling: str,
        hidden: nn.Module | None,
        dense: nn.Module | None,
        activation: nn.Module,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.hidden = hidden
        self.dense = dense
        self.activation = activation
        self.normalize = normalize

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(..., length, d_model) to (..., d_model), or (..., d_out) with a dense layer; `mask` as
        in `pool`."""
        x = pool(x, self.pooling, mask)
        if self.hidden is not None:
            x = self.hidden(x)
        if self.dense is not None:
            x = self.activation(self.dense(x))
        return F.normalize(x, dim=-1) if self.normalize else x
