"""Decoders of `transformers`, and our specs for the same."""

from __future__ import annotations

from references.published import EPS, FF, LONGEST, RMS, D, H, N, Published, V

SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": FF,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": EPS,
    "pad_token_id": 1,
}
LLAMA = {
    "builder": "decoder",
    "norm": RMS,
    "n_kv_heads": 2,
    "bias": False,
    "position": "rotary",
    "ffn": "glu",
}
NAMES = {
    "decoder.embed.tokens": "model.embed_tokens",
    "decoder.layers": "model.layers",
    "decoder.norm": "model.norm",
    "self_attn.pre_norm": "input_layernorm",
    "ffn.pre_norm": "post_attention_layernorm",
    "ffn.": "mlp.",
    "head.out": "lm_head",
}

DECODERS: dict[str, Published] = {
    "opt": Published(
        "OPTForCausalLM",
        {
            "vocab_size": V,
            "hidden_size": D,
            "ffn_dim": FF,
            "num_hidden_layers": N,
            "num_attention_heads": H,
            "max_position_embeddings": LONGEST,
            "word_embed_proj_dim": 10,
            "do_layer_norm_before": False,
        },
        {
            "builder": "decoder",
            "norm_placement": "post",
            "position": {"kind": "learned", "max_length": LONGEST, "offset": 2},
            "embedding": {
                "kind": "tokens",
                "d_embed": 10,
                "projection": "before_positions",
                "projection_bias": False,
            },
            "decoder": {"output_width": 10, "count_positions": "unmasked"},
            "head": {"kind": "linear", "tied": True},
        },
        {
            "decoder.out_proj": "model.decoder.project_out",
            "decoder.embed.proj": "model.decoder.project_in",
            "decoder.embed.tokens": "model.decoder.embed_tokens",
            "decoder.embed.positions": "model.decoder.embed_positions",
            "o_proj": "out_proj",
            "self_attn.out_norm": "self_attn_layer_norm",
            "ffn.out_norm": "final_layer_norm",
            "ffn.up_proj": "fc1",
            "ffn.down_proj": "fc2",
            "decoder.layers": "model.decoder.layers",
        },
        pads=("right", "left"),
    ),
    # rotation the other way, norms without weights, a norm of the embeddings, capped logits
    "nanochat": Published(
        "NanoChatForCausalLM",
        SIZES | {"final_logit_softcapping": 0.5},
        LLAMA
        | {
            "norm": RMS | {"weight": False},
            "embedding": {"kind": "tokens", "norm": RMS | {"weight": False}},
            "position": {"kind": "rotary", "direction": "clockwise"},
            "attention": {
                "kind": "multi_head",
                "qk_norm": RMS | {"weight": False},
                "qk_norm_site": "after_rotation",
            },
            "ffn": {"kind": "mlp", "activation": "relu_squared", "bias": False},
            "head": {"kind": "linear", "softcap": 0.5},
        },
        {
            **NAMES,
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        },
        pads=("right",),
    ),
    # parallel branches over one norm, rotary positions in every other layer, scaled logits
    "cohere2": Published(
        "Cohere2ForCausalLM",
        {k: v for k, v in SIZES.items() if k != "rms_norm_eps"}
        | {
            "layer_norm_eps": EPS,
            "logit_scale": 0.3,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        LLAMA
        | {
            "norm": {"kind": "layer_norm", "eps": EPS, "bias": False},
            "norm_placement": "parallel",
            "ffn": {"kind": "glu", "norms": []},
            "position": {"kind": "rotary", "pairs": "interleaved"},
            "attention": {"kind": "multi_head", "window": 4},
            "decoder": {
                "layers": [{"every": 2, "position": "none", "attention": {"window": "none"}}]
            },
            "head": {"kind": "linear", "tied": True, "scale": 0.3},
        },
        NAMES,
        pads=("right",),
    ),
    # a part of each head rotated, and a head with a bias
    "gptj": Published(
        "GPTJForCausalLM",
        {
            "vocab_size": V,
            "n_embd": D,
            "n_inner": FF,
            "n_layer": N,
            "n_head": H,
            "n_positions": LONGEST,
            "rotary_dim": 4,
            "layer_norm_epsilon": EPS,
        },
        {
            "builder": "decoder",
            "norm": {"kind": "layer_norm", "eps": EPS},
            "norm_placement": "parallel",
            "position": {"kind": "rotary", "pairs": "interleaved", "fraction": 4 / 6},
            "attention": {"kind": "multi_head", "bias": False},
            "ffn": {"kind": "mlp", "activation": "gelu_tanh", "norms": []},
            "head": {"kind": "linear", "bias": True},
        },
        {
            "decoder.embed.tokens": "transformer.wte",
            "decoder.layers": "transformer.h",
            "decoder.norm": "transformer.ln_f",
            "self_attn.pre_norm": "ln_1",
            "self_attn.o_proj": "attn.out_proj",
            "self_attn": "attn",
            "ffn.up_proj": "mlp.fc_in",
            "ffn.down_proj": "mlp.fc_out",
            "head.out": "lm_head",
        },
        pads=("right",),
    ),
    # all multipliers
    "granite": Published(
        "GraniteForCausalLM",
        SIZES
        | {
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.7,
            "tie_word_embeddings": False,
        },
        LLAMA
        | {
            "embedding": {"kind": "tokens", "scale": 3.0},
            "attention": {"kind": "multi_head", "scale": 0.7},
            "block": {"residual_scale": 0.3},
            "head": {"kind": "linear", "scale": 0.25},
        },
        NAMES,
        pads=("right",),
    ),
    # another base and scaling in each kind of layer
    "gemma3": Published(
        "Gemma3ForCausalLM",
        SIZES
        | {
            "head_dim": 8,
            "query_pre_attn_scalar": 5,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
            },
        },
        LLAMA
        | {
            "norm": RMS | {"zero_centered_weight": True},
            "norm_placement": "sandwich",
            "head_dim": 8,
            "embedding": {"kind": "tokens", "scale": "sqrt_d_model_rounded"},
            "position": {"kind": "rotary", "base": 100.0},
            "attention": {
                "kind": "multi_head",
                "scale": 5**-0.5,
                "window": 4,
                "qk_norm": RMS | {"zero_centered_weight": True},
            },
            "ffn": {"kind": "glu", "activation": "gelu_tanh"},
            "decoder": {
                "layers": [
                    {
                        "every": 2,
                        "position": {"kind": "rotary_linear", "base": 1000.0, "factor": 4.0},
                        "attention": {"window": "none"},
                    }
                ]
            },
            "head": {"kind": "linear", "tied": True},
        },
        {
            "self_attn.post_norm": "post_attention_layernorm",
            "ffn.pre_norm": "pre_feedforward_layernorm",
            "ffn.post_norm": "post_feedforward_layernorm",
            **{k: v for k, v in NAMES.items() if k != "ffn.pre_norm"},
        },
        pads=("right",),
    ),
}
