"""Models of `x-transformers`. Its attention and its layer norms have no biases, so only a Llama can
have the same weights; the others have the same sizes."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from x_transformers import Decoder, Encoder, TransformerWrapper


class Translator(nn.Module):
    """An encoder and a decoder, norms behind the residuals, sinusoids, one table for all tokens."""

    def __init__(
        self, *, layers: int, width: int, heads: int, hidden: int, vocab: int, dropout: float
    ) -> None:
        super().__init__()
        sizes = {
            "dim": width,
            "depth": layers,
            "heads": heads,
            "attn_dim_head": width // heads,
            "attn_flash": True,
            "attn_sublayer_dropout": dropout,
            "ff_mult": hidden / width,
            "ff_custom_activation": nn.ReLU(),
            "ff_sublayer_dropout": dropout,
            "pre_norm": False,
        }
        wrapped = {
            "num_tokens": vocab,
            "max_seq_len": 512,
            "scaled_sinu_pos_emb": True,
            "emb_dropout": dropout,
        }
        self.encoder = TransformerWrapper(attn_layers=Encoder(**sizes), **wrapped)
        self.decoder = TransformerWrapper(
            attn_layers=Decoder(cross_attend=True, **sizes),
            token_emb=self.encoder.token_emb,
            tie_embedding=True,
            **wrapped,
        )

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Ids (batch, length) to logits (batch, length, vocabulary)."""
        states = self.encoder(source, return_embeddings=True)
        logits: torch.Tensor = self.decoder(target, context=states)
        return logits


def gpt2(*, layers: int, width: int, heads: int, vocab: int, length: int) -> nn.Module:
    """A decoder of GPT-2's sizes, with learned positions and a tied head."""
    decoder = Decoder(
        dim=width, depth=layers, heads=heads, attn_dim_head=width // heads, attn_flash=True
    )
    model = TransformerWrapper(
        num_tokens=vocab, max_seq_len=length, attn_layers=decoder, tie_embedding=True
    )
    return model.eval()


def llama(theirs: LlamaForCausalLM) -> nn.Module:
    """A decoder with the weights of a Llama."""
    config = theirs.config
    decoder = Decoder(
        dim=config.hidden_size,
        depth=config.num_hidden_layers,
        heads=config.num_attention_heads,
        attn_dim_head=config.head_dim,
        attn_kv_heads=config.num_key_value_heads,
        attn_flash=True,
        use_rmsnorm=True,
        rotary_pos_emb=True,
        rotary_emb_dim=config.head_dim,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=config.intermediate_size / config.hidden_size,
    )
    model = TransformerWrapper(
        num_tokens=config.vocab_size,
        max_seq_len=config.max_position_embeddings,
        use_abs_pos_emb=False,
        attn_layers=decoder,
    )
    with torch.no_grad():
        model.token_emb.emb.weight.copy_(theirs.model.embed_tokens.weight)
        model.to_logits.weight.copy_(theirs.lm_head.weight)
        decoder.final_norm.g.copy_(theirs.model.norm.weight - 1)  # the gain is 1 + g
        for number, layer in enumerate(theirs.model.layers):
            (norm, *_), attention, _ = decoder.layers[2 * number]
            norm.g.copy_(layer.input_layernorm.weight - 1)
            theirs_attn = layer.self_attn
            queries = _in_pairs(theirs_attn.q_proj.weight, config.head_dim)
            attention.to_q.weight.copy_(_by_rank(queries, config))
            attention.to_k.weight.copy_(_in_pairs(theirs_attn.k_proj.weight, config.head_dim))
            attention.to_v.weight.copy_(theirs_attn.v_proj.weight)
            attention.to_out.weight.copy_(_by_rank(theirs_attn.o_proj.weight.T, config).T)
            (norm, *_), network, _ = decoder.layers[2 * number + 1]
            norm.g.copy_(layer.post_attention_layernorm.weight - 1)
            up_and_gate, _, down = network.ff
            up_and_gate.proj.weight.copy_(
                torch.cat([layer.mlp.up_proj.weight, layer.mlp.gate_proj.weight])
            )
            up_and_gate.proj.bias.zero_()
            down.weight.copy_(layer.mlp.down_proj.weight)
    return model.eval()


def _in_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows in the order in which neighbours are turned together, not halves of a head."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).reshape(weight.shape)


def _by_rank(weight: torch.Tensor, config: LlamaConfig) -> torch.Tensor:
    """Rows in the order in which head i shares the keys of head i modulo their number, not those
    of its neighbours."""
    groups = weight.unflatten(0, (config.num_key_value_heads, -1, config.head_dim))
    return groups.transpose(0, 1).reshape(weight.shape)
