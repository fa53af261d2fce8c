"""Encoders of `transformers`, and our specs for the same."""

from __future__ import annotations

from references.published import EPS, FF, LONGEST, NORM, D, H, N, Published, V

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
ALBERT_NAMES = {
    "encoder.embed.tokens": "albert.embeddings.word_embeddings",
    "encoder.embed.positions": "albert.embeddings.position_embeddings",
    "encoder.embed.types": "albert.embeddings.token_type_embeddings",
    "encoder.embed.norm": "albert.embeddings.LayerNorm",
    "encoder.embed.proj": "albert.encoder.embedding_hidden_mapping_in",
    **{
        f"encoder.layers.{i}": f"albert.encoder.albert_layer_groups.{i // 2}.albert_layers.{i % 2}"
        for i in range(4)
    },
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
}
ALBERT_CONFIG = BERT_CONFIG | {"embedding_size": 10, "hidden_act": "gelu"}
ALBERT_SPEC = BERT_SPEC | {
    "embedding": {"kind": "tokens", "n_types": 2, "norm": NORM, "d_embed": 10},
    "head": {"kind": "mlm", "tied": True, "d_hidden": 10},
}
ENCODERS: dict[str, Published] = {
    "bert": Published(
        "BertForPreTraining",
        BERT_CONFIG,
        BERT_SPEC | {"pooler": "pooler", "nsp": True},
        BERT_NAMES,
        token_types=True,
    ),
    "albert": Published(
        "AlbertForMaskedLM",
        ALBERT_CONFIG,
        ALBERT_SPEC | {"encoder": {"share_layers": True}},
        ALBERT_NAMES,
        token_types=True,
    ),
    "albert, layers in groups": Published(  # three groups of two layers; the first twice
        "AlbertForMaskedLM",
        ALBERT_CONFIG | {"num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2},
        ALBERT_SPEC | {"n_layers": 6, "encoder": {"share_layers": [0, 1, 0, 1, 2, 3]}},
        ALBERT_NAMES,
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
    "longformer": Published(
        "LongformerForMaskedLM",
        BERT_CONFIG | {"type_vocab_size": 1, "pad_token_id": 1, "attention_window": [4, 6]},
        BERT_SPEC
        | {
            "pad_id": 1,
            "position": {"kind": "learned", "max_length": LONGEST - 2, "offset": 2},
            "embedding": {"kind": "tokens", "n_types": 1, "norm": NORM},
            "attention": {
                "kind": "multi_head",
                "window": 2,
                "window_sides": "both",
                "global_tokens": True,
            },
            "encoder": COUNTED | {"layers": [{"at": [1], "self_attn": {"window": 3}}]},
        },
        {
            **{
                ours: theirs.replace("roberta.", "longformer.")
                for ours, theirs in ROBERTA_NAMES.items()
            },
            "self_attn.global_q_proj": "attention.self.query_global",
            "self_attn.global_k_proj": "attention.self.key_global",
            "self_attn.global_v_proj": "attention.self.value_global",
        },
        pads=("right", "left"),
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
}
