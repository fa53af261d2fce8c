"""PyTorch's own Transformer layers, with the weights of a Marian or a BERT of `transformers`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn
from transformers import BertModel, MarianMTModel

MARIAN = {
    "self_attn.": "self_attn.",
    "multihead_attn.": "encoder_attn.",
    "linear1.": "fc1.",
    "linear2.": "fc2.",
    "norm1.": "self_attn_layer_norm.",
}
"""How the parameters of a layer begin here, and there. The other norms depend on the side."""

ENCODER_SIDE = {**MARIAN, "norm2.": "final_layer_norm."}
DECODER_SIDE = {**MARIAN, "norm2.": "encoder_attn_layer_norm.", "norm3.": "final_layer_norm."}

BERT = {
    "self_attn.out_proj.": "attention.output.dense.",
    "self_attn.": "attention.self.",
    "linear1.": "intermediate.dense.",
    "linear2.": "output.dense.",
    "norm1.": "attention.output.LayerNorm.",
    "norm2.": "output.LayerNorm.",
}


class Translator(nn.Module):
    """`nn.Transformer` with the tables and the head of a Marian. Dropout is that of the residual
    branches alone, as there."""

    def __init__(self, marian: MarianMTModel) -> None:
        super().__init__()
        config = marian.config
        self.register_buffer("positions", marian.model.encoder.embed_positions.weight.detach())
        self.tokens = nn.Embedding.from_pretrained(marian.model.shared.weight.clone(), freeze=False)
        self.scale = math.sqrt(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        sizes = (config.d_model, config.encoder_attention_heads, config.encoder_ffn_dim)
        # Built by hand, as `nn.Transformer` would put one more norm behind each stack.
        layer = nn.TransformerEncoderLayer(*sizes, config.dropout, batch_first=True)
        encoder = nn.TransformerEncoder(layer, config.encoder_layers)
        other = nn.TransformerDecoderLayer(*sizes, config.dropout, batch_first=True)
        decoder = nn.TransformerDecoder(other, config.decoder_layers)
        self.transformer = nn.Transformer(
            *sizes[:2], custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        _fill(encoder.layers, marian.model.encoder.layers, ENCODER_SIDE)
        _fill(decoder.layers, marian.model.decoder.layers, DECODER_SIDE)
        for one in [*encoder.layers, *decoder.layers]:
            one.dropout.p = 0.0  # between the two maps of the position-wise network
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.head = nn.Linear(config.d_model, config.vocab_size)
        self.head.weight = self.tokens.weight
        with torch.no_grad():
            self.head.bias.copy_(marian.final_logits_bias[0])
        self.head.bias.requires_grad_(requires_grad=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Ids (batch, length) to logits (batch, length, vocabulary)."""
        like = self.tokens.weight
        mask = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=like.device, dtype=like.dtype
        )
        states = self.transformer(
            self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True
        )
        return self.head(states)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.positions[: ids.shape[1]]
        return self.dropout(self.tokens(ids) * self.scale + positions)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` behind the embeddings of a BERT. In inference it takes its fast path,
    and with padding nested tensors."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        config = bert.config
        self.embeddings = bert.embeddings
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            activation="gelu",
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers).eval()
        _fill(self.encoder.layers, bert.encoder.layer, BERT)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Ids (batch, length) and where there are tokens, to states (batch, length, width)."""
        hidden = None if mask is None else ~mask
        states: torch.Tensor = self.encoder(self.embeddings(ids), src_key_padding_mask=hidden)
        return states


def _fill(ours: nn.ModuleList, theirs: nn.ModuleList, names: Mapping[str, str]) -> None:
    """Copy the weights of layers. q, k and v are one matrix here."""
    with torch.no_grad():
        for layer, other in zip(ours, theirs, strict=True):
            tensors = other.state_dict()
            for name, parameter in layer.named_parameters():
                prefix = next(prefix for prefix in names if name.startswith(prefix))
                name = names[prefix] + name.removeprefix(prefix)
                if "in_proj_" in name:
                    parts = ("query", "key", "value") if names is BERT else _PROJECTIONS
                    found = [tensors[name.replace("in_proj_", f"{part}.")] for part in parts]
                    parameter.copy_(torch.cat(found))
                else:
                    parameter.copy_(tensors[name])


_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
