"""Published models: tiny ones of `transformers`, and our specs for the same.

What is tested is what surrounds attention and network: embeddings, positions, stacks and heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EPS = 1e-3
NORM = {"kind": "layer_norm", "eps": EPS}
RMS = {"kind": "rms_norm", "eps": EPS}
V, D, FF, H, N, LONGEST = 41, 24, 36, 4, 2, 30


@dataclass(frozen=True)
class Published:
    """A model class of `transformers` with its configuration, and our spec.

    Args:
        model: the class, whose configuration class is `config_class`.
        config: beside the defaults.
        spec: beside the common sizes.
        names: parts of our tensors' names as parts of theirs, replaced in order.
        inputs: `ids`, or `features` for an encoder that hears.
        pads: sides on which sequences are padded in the test.
        pad_id: of ours and theirs.
        token_types: whether both are called with them.
        left: how names of their tensors start that ours do not have.
        within: whether outputs at padding count.
    """

    model: str
    config: dict[str, Any]
    spec: dict[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    inputs: str = "ids"
    pads: tuple[str, ...] = ("right",)
    pad_id: int = 1
    token_types: bool = False
    left: tuple[str, ...] = ()
    within: bool = False

    def renamed(self, name: str) -> str:
        """Our name of a tensor as theirs."""
        for ours, theirs in self.names.items():
            name = name.replace(ours, theirs)
        return name

    @property
    def config_class(self) -> str:
        """The name of the configuration's class."""
        return self.model.split("For")[0].split("With")[0] + "Config"


BERT_CONFIG = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": FF,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "max_position_embeddings": LONGEST,
    "layer_norm_eps": EPS,
    "type_vocab_size": 2,
}
BERT_SPEC = {
    "builder": "encoder",
    "norm": NORM,
    "norm_placement": "post",
    "position": {"kind": "learned", "max_length": LONGEST},
    "embedding": {"kind": "tokens", "n_types": 2, "norm": NORM},
    "ffn": {"kind": "mlp", "activation": "gelu"},
    "head": {"kind": "mlm", "tied": True},
}
BERT_NAMES = {
    "encoder.embed.tokens": "bert.embeddings.word_embeddings",
    "encoder.embed.positions": "bert.embeddings.position_embeddings",
    "encoder.embed.types": "bert.embeddings.token_type_embeddings",
    "encoder.embed.norm": "bert.embeddings.LayerNorm",
    "encoder.layers": "bert.encoder.layer",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
    "self_attn.out_norm": "attention.output.LayerNorm",
    "ffn.up_proj": "intermediate.dense",
    "ffn.down_proj": "output.dense",
    "ffn.out_norm": "output.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.out.bias": "cls.predictions.bias",
    "pooler": "bert.pooler.dense",
    "nsp": "cls.seq_relationship",
}
COUNTED = {"count_positions": "unpadded"}
ROBERTA_NAMES = {
    **{ours: theirs.replace("bert.", "roberta.", 1) for ours, theirs in BERT_NAMES.items()},
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.out.bias": "lm_head.bias",
}
DEBERTA_NAMES = {
    **{ours: theirs.replace("bert.", "deberta.", 1) for ours, theirs in BERT_NAMES.items()},
    "self_attn.q_proj": "attention.self.query_proj",
    "self_attn.k_proj": "attention.self.key_proj",
    "self_attn.v_proj": "attention.self.value_proj",
    "self_attn.pos_k_proj": "attention.self.pos_key_proj",
    "self_attn.pos_q_proj": "attention.self.pos_query_proj",
    "encoder.rel_embed.norm": "deberta.encoder.LayerNorm",
    "encoder.rel_embed": "deberta.encoder.rel_embeddings",
}
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
GPT_NAMES = {
    "decoder.embed.tokens": "transformer.word_embeddings",
    "decoder.embed.norm": "transformer.word_embeddings_layernorm",
    "decoder.norm": "transformer.ln_f",
    "decoder.layers": "transformer.h",
}

MODELS: dict[str, Published] = {
    "bert": Published(
        "BertForPreTraining",
        BERT_CONFIG,
        BERT_SPEC | {"pooler": "pooler", "nsp": True},
        BERT_NAMES,
        token_types=True,
    ),
    "albert": Published(
        "AlbertForMaskedLM",
        BERT_CONFIG | {"embedding_size": 10, "hidden_act": "gelu"},
        BERT_SPEC
        | {
            "embedding": {"kind": "tokens", "n_types": 2, "norm": NORM, "d_embed": 10},
            "encoder": {"share_layers": True},
            "head": {"kind": "mlm", "tied": True, "d_hidden": 10},
        },
        {
            "encoder.embed.tokens": "albert.embeddings.word_embeddings",
            "encoder.embed.positions": "albert.embeddings.position_embeddings",
            "encoder.embed.types": "albert.embeddings.token_type_embeddings",
            "encoder.embed.norm": "albert.embeddings.LayerNorm",
            "encoder.embed.proj": "albert.encoder.embedding_hidden_mapping_in",
            "encoder.layers.0": "albert.encoder.albert_layer_groups.0.albert_layers.0",
            "self_attn.q_proj": "attention.query",
            "self_attn.k_proj": "attention.key",
            "self_attn.v_proj": "attention.value",
            "self_attn.o_proj": "attention.dense",
            "self_attn.out_norm": "attention.LayerNorm",
            "ffn.up_proj": "ffn",
            "ffn.down_proj": "ffn_output",
            "ffn.out_norm": "full_layer_layer_norm",
            "head.dense": "predictions.dense",
            "head.norm": "predictions.LayerNorm",
            "head.out.bias": "predictions.bias",
        },
        token_types=True,
    ),
    "electra": Published(
        "ElectraForMaskedLM",
        BERT_CONFIG | {"embedding_size": 10, "hidden_act": "relu"},
        BERT_SPEC
        | {
            "embedding": {"kind": "tokens", "n_types": 2, "norm": NORM, "d_embed": 10},
            "ffn": {"kind": "mlp", "activation": "relu"},
            "head": {"kind": "mlm", "tied": True, "d_hidden": 10, "activation": "gelu"},
        },
        {
            **{a: b.replace("bert.", "electra.", 1) for a, b in BERT_NAMES.items()},
            "encoder.embed.proj": "electra.embeddings_project",
            "head.dense": "generator_predictions.dense",
            "head.norm": "generator_predictions.LayerNorm",
            "head.out.bias": "generator_lm_head.bias",
        },
    ),
    "roberta": Published(
        "RobertaForMaskedLM",
        BERT_CONFIG | {"type_vocab_size": 1, "pad_token_id": 1},
        BERT_SPEC
        | {
            "pad_id": 1,
            "position": {"kind": "learned", "max_length": LONGEST - 2, "offset": 2},
            "embedding": {"kind": "tokens", "n_types": 1, "norm": NORM},
            "encoder": COUNTED,
        },
        ROBERTA_NAMES,
        pads=("right", "left", "inside"),
    ),
    "mpnet": Published(
        "MPNetForMaskedLM",
        {k: v for k, v in BERT_CONFIG.items() if k != "type_vocab_size"},
        BERT_SPEC
        | {
            "pad_id": 1,
            "position": {"kind": "learned", "max_length": LONGEST - 2, "offset": 2},
            "embedding": {"kind": "tokens", "norm": NORM},
            "encoder": COUNTED | {"relative": "t5_buckets"},
        },
        {
            "encoder.rel_bias": "mpnet.encoder.relative_attention_bias",
            **{a: b.replace("bert.", "mpnet.", 1) for a, b in BERT_NAMES.items()},
            "self_attn.q_proj": "attention.attn.q",
            "self_attn.k_proj": "attention.attn.k",
            "self_attn.v_proj": "attention.attn.v",
            "self_attn.o_proj": "attention.attn.o",
            "self_attn.out_norm": "attention.LayerNorm",
            "head.dense": "lm_head.dense",
            "head.norm": "lm_head.layer_norm",
            "head.out.bias": "lm_head.bias",
        },
    ),
    "xlm": Published(
        "XLMWithLMHeadModel",
        {
            "vocab_size": V,
            "emb_dim": D,
            "n_layers": N,
            "n_heads": H,
            "max_position_embeddings": LONGEST,
            "layer_norm_eps": EPS,
            "pad_index": 1,
            "n_langs": 1,
        },
        BERT_SPEC
        | {
            "d_ff": 4 * D,
            "embedding": {"kind": "tokens", "norm": NORM, "masked_tokens": "zeroed"},
            "head": {"kind": "linear", "tied": True, "bias": True},
        },
        {
            "encoder.embed.tokens": "transformer.embeddings",
            "encoder.embed.positions": "transformer.position_embeddings",
            "encoder.embed.norm": "transformer.layer_norm_emb",
            "head.out.bias": "pred_layer.proj.bias",
            **{
                f"encoder.layers.{i}.{ours}": f"transformer.{theirs.format(i)}"
                for i in range(N)
                for ours, theirs in {
                    "self_attn.q_proj": "attentions.{}.q_lin",
                    "self_attn.k_proj": "attentions.{}.k_lin",
                    "self_attn.v_proj": "attentions.{}.v_lin",
                    "self_attn.o_proj": "attentions.{}.out_lin",
                    "self_attn.out_norm": "layer_norm1.{}",
                    "ffn.up_proj": "ffns.{}.lin1",
                    "ffn.down_proj": "ffns.{}.lin2",
                    "ffn.out_norm": "layer_norm2.{}",
                }.items()
            },
        },
    ),
    "esm": Published(
        "EsmForMaskedLM",
        BERT_CONFIG
        | {
            "pad_token_id": 1,
            "mask_token_id": 7,
            "token_dropout": True,
            "emb_layer_norm_before": True,
            "position_embedding_type": "rotary",
        },
        BERT_SPEC
        | {
            "norm_placement": "pre",
            "position": "rotary",
            "embedding": {
                "kind": "tokens",
                "norm": NORM,
                "masked_tokens": "zeroed",
                "token_dropout": 0.12,
                "mask_id": 7,
            },
        },
        {
            **{a: b.replace("bert.", "esm.", 1) for a, b in BERT_NAMES.items()},
            "encoder.embed.norm": "esm.embeddings.layer_norm",
            "self_attn.pre_norm": "attention.LayerNorm",
            "ffn.pre_norm": "LayerNorm",
            "encoder.norm": "esm.encoder.emb_layer_norm_after",
            "head.dense": "lm_head.dense",
            "head.norm": "lm_head.layer_norm",
            "head.out.bias": "lm_head.bias",
        },
        left=("esm.contact_head", "esm.rotary_embeddings"),
    ),
    "deberta-v2": Published(
        "DebertaV2ForMaskedLM",
        BERT_CONFIG
        | {
            "relative_attention": True,
            "position_buckets": 4,
            "max_relative_positions": 8,
            "pos_att_type": ["c2p", "p2c"],
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "share_att_key": True,
            "type_vocab_size": 0,
        },
        BERT_SPEC
        | {
            "position": {
                "kind": "disentangled",
                "max_distance": 8,
                "n_buckets": 4,
                "norm": NORM,
            },
            "attention": {"kind": "disentangled", "position_projections": "shared"},
            "embedding": {"kind": "tokens", "norm": NORM, "masked_tokens": "zeroed"},
        },
        DEBERTA_NAMES,
    ),
    "deberta-v2 absolute": Published(
        "DebertaV2ForMaskedLM",
        BERT_CONFIG
        | {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": True,
        },
        BERT_SPEC
        | {
            "encoder": {"relative": {"kind": "disentangled", "max_distance": LONGEST}},
            "attention": "disentangled",
            "embedding": {
                "kind": "tokens",
                "norm": NORM,
                "n_types": 2,
                "masked_tokens": "zeroed",
            },
        },
        DEBERTA_NAMES,
        token_types=True,
    ),
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
            "encoder": COUNTED,
            "decoder": COUNTED,
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
            **{
                k: v
                for k, v in BART_NAMES.items()
                if k.startswith(("decoder.layers", "self", "ffn"))
            },
            "decoder.layers": "model.decoder.layers",
        },
        pads=("right", "left"),
    ),
}
