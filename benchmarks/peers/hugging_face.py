"""Models of `transformers` with random weights, and the zoo's with the same weights: imported, as a
published model is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import zoo
from zoo import import_folder
from zoo.transformer import Transformer

Pair = tuple[nn.Module, Transformer]


def gpt2(*, layers: int, width: int, heads: int, vocab: int, length: int) -> Pair:
    """GPT-2."""
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=length
    )
    return _pair(transformers.GPT2LMHeadModel(config))


def llama(
    *, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocab: int, length: int
) -> Pair:
    """Llama, with grouped queries."""
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=length,
    )
    return _pair(transformers.LlamaForCausalLM(config))


def bert(*, layers: int, width: int, heads: int, vocab: int, length: int) -> Pair:
    """BERT's encoder, without its pooler."""
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=vocab,
        max_position_embeddings=length,
    )
    return _pair(transformers.BertModel(config, add_pooling_layer=False))


def marian(
    *,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    vocab: int,
    eos: int,
    start: int,
    dropout: float = 0.0,
) -> Pair:
    """Marian: the encoder-decoder of Vaswani et al. with one table for all tokens. Dropout is that
    behind sublayers and embeddings."""
    config = transformers.MarianConfig(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        pad_token_id=start,
        eos_token_id=eos,
        forced_eos_token_id=None,
        decoder_start_token_id=start,
        dropout=dropout,
    )
    return _pair(transformers.MarianMTModel(config))


def _pair(model: Any) -> Pair:
    """The model with weights that are large enough to matter, the same in each run, and the zoo's
    with the same weights."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # not the table of sinusoids
                noise = torch.randn(parameter.shape, generator=random)
                is_norm = parameter.dim() == 1 and name.endswith("weight")
                parameter.copy_(1.5 * parameter.shape[-1] ** -0.5 * noise + is_norm)
    with tempfile.TemporaryDirectory() as folder:
        published, imported = Path(folder, "published"), Path(folder, "imported")
        model.save_pretrained(published)
        import_folder(published, imported)
        return model.eval(), zoo.load(imported).eval()
