"""BERT in `curated-transformers`, with the weights of one of `transformers`."""

from __future__ import annotations

import torch
from curated_transformers.layers import AttentionMask
from curated_transformers.models import BERTEncoder
from torch import nn
from transformers import BertModel


class Encoder(nn.Module):
    """A `BERTEncoder`."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.encoder = BERTEncoder.from_hf_config(hf_config=bert.config.to_dict()).eval()
        self.encoder.load_state_dict(BERTEncoder.state_dict_from_hf(bert.state_dict()))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Ids (batch, length) and where there are tokens, to states (batch, length, width)."""
        if mask is None:  # it wants one always
            mask = torch.ones_like(ids, dtype=torch.bool)
        states: torch.Tensor = self.encoder(ids, AttentionMask(mask)).last_hidden_layer_state
        return states
