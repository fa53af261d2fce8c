"""Encoder-decoders of `transformers`, and our specs for the same."""

from __future__ import annotations

from references.published import EPS, FF, LONGEST, RMS, D, H, N, Published, V

BART_SPEC = {
    "builder": "encoder_decoder",
    "share_embeddings": True,
    "norm": {"kind": "layer_norm"},
    "norm_placement": "post",
    "position": {"kind": "learned", "max_length": LONGEST, "offset": 2},
    "embedding": {"kind": "tokens", "norm": "layer_norm"},
    "ffn": {"kind": "mlp", "activation": "gelu"},
    "head": {"kind": "linear", "tied": True, "logits_bias": True},
}
BART_CONFIG = {
    "vocab_size": V,
    "d_model": D,
    "encoder_layers": N,
    "decoder_layers": N,
    "encoder_attention_heads": H,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": FF,
    "decoder_ffn_dim": FF,
    "max_position_embeddings": LONGEST,
    "forced_eos_token_id": None,
}
BART_NAMES = {
    "encoder.embed.positions": "model.encoder.embed_positions",
    "decoder.embed.positions": "model.decoder.embed_positions",
    "encoder.embed.norm": "model.encoder.layernorm_embedding",
    "decoder.embed.norm": "model.decoder.layernorm_embedding",
    "decoder.embed.tokens": "model.shared",
    "encoder.layers": "model.encoder.layers",
    "decoder.layers": "model.decoder.layers",
    "encoder.norm": "model.encoder.layer_norm",
    "decoder.norm": "model.decoder.layer_norm",
    "o_proj": "out_proj",
    "cross_attn.out_norm": "encoder_attn_layer_norm",
    "cross_attn.pre_norm": "encoder_attn_layer_norm",
    "cross_attn": "encoder_attn",
    "self_attn.out_norm": "self_attn_layer_norm",
    "self_attn.pre_norm": "self_attn_layer_norm",
    "ffn.out_norm": "final_layer_norm",
    "ffn.pre_norm": "final_layer_norm",
    "ffn.up_proj": "fc1",
    "ffn.down_proj": "fc2",
    "head.logits_bias": "final_logits_bias",
}
T5_CONFIG = {
    "vocab_size": V,
    "d_model": D,
    "d_kv": 5,
    "d_ff": FF,
    "num_layers": N,
    "num_heads": H,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "layer_norm_epsilon": EPS,
}
BUCKETS = {"kind": "t5_buckets", "n_buckets": 8, "max_distance": 12}
T5_SPEC = {
    "builder": "encoder_decoder",
    "share_embeddings": True,
    "norm": RMS,
    "bias": False,
    "attention": {"kind": "multi_head", "head_dim": 5, "scale": 1.0},
    "position": BUCKETS,
    "head": {"kind": "linear", "tied": True, "input_scale": "inverse_sqrt_d_model"},
}
T5_NAMES = {
    **{
        f"{stack}.layers.{i}.ffn{ours}": f"{stack}.block.{i}.layer.{number}{theirs}"
        for stack, number in (("encoder", 1), ("decoder", 2))
        for i in range(N)
        for ours, theirs in ((".pre_norm", ".layer_norm"), ("", ".DenseReluDense"))
    },
    "encoder.rel_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "decoder.rel_bias": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "self_attn.rel_bias": "layer.0.SelfAttention.relative_attention_bias",
    "decoder.embed.tokens": "shared",
    "layers": "block",
    "self_attn.pre_norm": "layer.0.layer_norm",
    "cross_attn.pre_norm": "layer.1.layer_norm",
    "encoder.norm": "encoder.final_layer_norm",
    "decoder.norm": "decoder.final_layer_norm",
    "self_attn.": "layer.0.SelfAttention.",
    "cross_attn.": "layer.1.EncDecAttention.",
    "_proj": "",
    "up.": "wi.",
    "down.": "wo.",
    "gate.": "wi_0.",
}
PAIRS: dict[str, Published] = {
    "bart": Published("BartForConditionalGeneration", BART_CONFIG, BART_SPEC, BART_NAMES),
    "mbart": Published(
        "MBartForConditionalGeneration",
        BART_CONFIG | {"scale_embedding": True},
        BART_SPEC
        | {
            "norm_placement": "pre",
            "embedding": {"kind": "tokens", "norm": "layer_norm", "scale": "sqrt_d_model"},
        },
        BART_NAMES,
    ),
    "m2m_100": Published(
        "M2M100ForConditionalGeneration",
        BART_CONFIG | {"scale_embedding": True, "activation_function": "relu"},
        BART_SPEC
        | {
            "norm_placement": "pre",
            "pad_id": 1,
            "position": {
                "kind": "sinusoidal",
                "arrangement": "halves",
                "exponent": "half_minus_one",
                "offset": 2,
                "zero_padding": True,
            },
            "encoder": {"count_positions": "unpadded"},
            "decoder": {"count_positions": "unpadded"},
            "embedding": {"kind": "tokens", "scale": "sqrt_d_model"},
            "ffn": "mlp",
            "head": {"kind": "linear", "tied": True},
        },
        BART_NAMES,
        pads=("right", "left", "inside"),
        within=True,
    ),
    "whisper": Published(
        "WhisperForConditionalGeneration",
        {k: v for k, v in BART_CONFIG.items() if k != "max_position_embeddings"}
        | {
            "max_source_positions": 12,
            "max_target_positions": LONGEST,
            "num_mel_bins": 6,
            "pad_token_id": 1,
            "decoder_start_token_id": 2,
        },
        BART_SPEC
        | {
            "share_embeddings": False,
            "norm_placement": "pre",
            "bias": ["q", "v", "o"],
            "ffn": {"kind": "mlp", "activation": "gelu", "bias": True},
            "encoder": {
                "embedding": {"kind": "conv_frontend", "n_features": 6},
                "position": {
                    "kind": "sinusoidal",
                    "arrangement": "halves",
                    "exponent": "half_minus_one",
                    "max_length": 12,
                },
            },
            "decoder": {
                "embedding": {"kind": "tokens"},
                "position": {"kind": "learned", "max_length": LONGEST},
            },
            "embedding": None,
            "position": None,
            "head": {"kind": "linear", "tied": True},
        },
        {
            "encoder.frontend.0": "model.encoder.conv1",
            "encoder.frontend.1": "model.encoder.conv2",
            **BART_NAMES,
            "decoder.embed.tokens": "model.decoder.embed_tokens",
        },
        inputs="features",
        left=("model.encoder.embed_positions",),
    ),
    "t5": Published("T5ForConditionalGeneration", T5_CONFIG, T5_SPEC, T5_NAMES),
    "umt5": Published(
        "UMT5ForConditionalGeneration",
        T5_CONFIG | {"feed_forward_proj": "relu"},
        T5_SPEC | {"position": "none", "block": {"kind": "residual", "self_position": BUCKETS}},
        {k: v for k, v in T5_NAMES.items() if k not in ("encoder.rel_bias", "decoder.rel_bias")},
    ),
}
