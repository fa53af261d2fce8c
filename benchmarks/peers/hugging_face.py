"""Models of `transformers` with random weights, and the zoo's with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn

import zoo
from zoo.building import stored
from zoo.transformer import Transformer

Pair = tuple[nn.Module, Transformer]


def gpt2(*, layers: int, width: int, heads: int, vocab: int, length: int) -> Pair:
    """GPT-2. Its linear maps are stored transposed, and those of q, k and v as one."""
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=length
    )
    theirs = _random(transformers.GPT2LMHeadModel(config))
    tensors = {
        name.replace("transformer.", ""): tensor.T
        if name.endswith("weight") and tensor.dim() == 2 and "h." in name
        else tensor
        for name, tensor in theirs.state_dict().items()
    }
    for name in [name for name in tensors if "c_attn" in name]:
        for part, third in zip("qkv", tensors[name].chunk(3), strict=True):
            tensors[name.replace("c_attn", f"{part}_proj")] = third
    spec = {
        "builder": "decoder",
        "vocab": vocab,
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "d_ff": 4 * width,
        "position": {"kind": "learned", "max_length": length},
        "ffn": {"kind": "mlp", "activation": "gelu_tanh"},
        "head": {"kind": "linear", "tied": True},
    }
    names = {
        "decoder.embed.tokens": "wte",
        "decoder.embed.positions": "wpe",
        "decoder.layers": "h",
        "decoder.norm": "ln_f",
        "self_attn.pre_norm": "ln_1",
        "ffn.pre_norm": "ln_2",
        "self_attn.o_proj": "attn.c_proj",
        "self_attn": "attn",
        "ffn.up_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
    }
    return theirs, _ours(spec, tensors, names)


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
    theirs = _random(transformers.LlamaForCausalLM(config))
    spec = {
        "builder": "decoder",
        "vocab": vocab,
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "d_ff": hidden,
        "bias": False,
        "norm": {"kind": "rms_norm", "eps": 1e-6},
        "position": "rotary",
        "attention": {"kind": "multi_head", "n_kv_heads": kv_heads},
        "ffn": "glu",
        "head": {"kind": "linear"},
    }
    names = {
        "decoder.embed.tokens": "model.embed_tokens",
        "decoder.norm": "model.norm",
        "decoder.layers": "model.layers",
        "self_attn.pre_norm": "input_layernorm",
        "ffn.pre_norm": "post_attention_layernorm",
        "ffn": "mlp",
        "head.out": "lm_head",
    }
    return theirs, _ours(spec, theirs.state_dict(), names)


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
    theirs = _random(transformers.BertModel(config, add_pooling_layer=False))
    spec = {
        "builder": "encoder",
        "vocab": vocab,
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "d_ff": 4 * width,
        "norm": {"kind": "layer_norm", "eps": 1e-12},
        "norm_placement": "post",
        "position": {"kind": "learned", "max_length": length},
        "embedding": {"kind": "tokens", "norm": "layer_norm", "n_types": 2},
        "ffn": {"kind": "mlp", "activation": "gelu"},
        "head": "none",
    }
    names = {
        "encoder.embed.tokens": "embeddings.word_embeddings",
        "encoder.embed.positions": "embeddings.position_embeddings",
        "encoder.embed.types": "embeddings.token_type_embeddings",
        "encoder.embed.norm": "embeddings.LayerNorm",
        "encoder.layers": "encoder.layer",
        "self_attn.out_norm": "attention.output.LayerNorm",
        "ffn.out_norm": "output.LayerNorm",
        "self_attn.o_proj": "attention.output.dense",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense",
    }
    return theirs, _ours(spec, theirs.state_dict(), names)


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
    theirs = _random(transformers.MarianMTModel(config))
    spec = {
        "builder": "encoder_decoder",
        "source_vocab": vocab,
        "target_vocab": vocab,
        "share_embeddings": True,
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "d_ff": hidden,
        "dropout": dropout,
        "attention": {"kind": "multi_head", "dropout": 0.0},
        "ffn": {"kind": "mlp", "dropout": 0.0},
        "norm_placement": "post",
        "position": {"kind": "sinusoidal", "arrangement": "halves", "max_length": 512},
        "embedding": {"kind": "tokens", "scale": "sqrt_d_model"},
        "head": {"kind": "linear", "tied": True, "logits_bias": True},
    }
    names = {
        "decoder.embed.tokens": "model.shared",
        "encoder.layers": "model.encoder.layers",
        "decoder.layers": "model.decoder.layers",
        "o_proj": "out_proj",
        "cross_attn.out_norm": "encoder_attn_layer_norm",
        "cross_attn": "encoder_attn",
        "self_attn.out_norm": "self_attn_layer_norm",
        "ffn.out_norm": "final_layer_norm",
        "ffn.up_proj": "fc1",
        "ffn.down_proj": "fc2",
        "head.logits_bias": "final_logits_bias",
    }
    return theirs, _ours(spec, theirs.state_dict(), names)


def _random(model: Any) -> nn.Module:
    """The model with weights that are large enough to matter, the same in each run."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # not the table of sinusoids
                noise = torch.randn(parameter.shape, generator=random)
                is_norm = parameter.dim() == 1 and name.endswith("weight")
                parameter.copy_(1.5 * parameter.shape[-1] ** -0.5 * noise + is_norm)
    evaluated: nn.Module = model.eval()
    return evaluated


def _ours(
    spec: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> Transformer:
    model = zoo.build({"format": 1, "name": "peer", **spec}).eval()
    with torch.no_grad():
        for name, tensor in stored(model).items():
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            tensor.copy_(tensors[name].view(tensor.shape))
    return model
