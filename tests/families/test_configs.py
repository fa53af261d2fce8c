"""Configurations as they are seldom written: read as transformers reads them, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from families.cases import Case, all_cases
from families.checkpoints import make_config, make_model, save, write_config
from families.conformance import Report, compare_outputs, make_truth, registry
from zoo import import_folder
from zoo.errors import ZooError
from zoo.families.registered import Families
from zoo.families.spec import family_spec
from zoo.families.unread import check_read
from zoo.json_files import read_json

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
OLD_LONG = {"type": "longrope", "original_max_position_embeddings": 6, **LONG}
PHI = {**OLD_LONG, "rope_type": "longrope", "short_mscale": 1.2, "long_mscale": 1.2}
STRETCHED = {"type": "dynamic", "factor": 1.0, "alpha": 1000.0, "mscale": 1.0, "beta_fast": 32}
OLDER: Mapping[str, Any] = {"rope_parameters": None, "rope_theta": 500.0}
BY_LAYERS = {"num_hidden_layers": 3, "sliding_window": 4, "query_pre_attn_scalar": 20}


def case(name: str, model_class: str, config: Mapping[str, Any], **published: Any) -> Case:
    kind = "decoder"
    return Case(name=name, kind=kind, model_class=model_class, config=config, published=published)


def llama(**published: Any) -> Case:
    return case("llama", "LlamaForCausalLM", {}, **published)


def gemma3(**published: Any) -> Case:
    return case("gemma3_text", "Gemma3ForCausalLM", BY_LAYERS, **published)


def phi3(**published: Any) -> Case:
    return case("phi3", "Phi3ForCausalLM", {"original_max_position_embeddings": 8}, **published)


def gpt_neox(**published: Any) -> Case:
    half = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    return case("gpt_neox", "GPTNeoXForCausalLM", {"rope_parameters": half}, **published)


def tiny(name: str, **published: Any) -> Case:
    return replace(all_cases()[name], published=published)


def with_config(name: str, **config: Any) -> Case:
    """A case of which the configuration states these too, so that it has other tensors."""
    return replace(all_cases()[name], config={**all_cases()[name].config, **config})


def inside(name: str, key: str, **stated: Any) -> Case:
    """A case of which a table of the configuration states these."""
    return tiny(name, **{key: {**make_config(all_cases()[name]).to_dict()[key], **stated}})


def without(name: str, key: str, *left_out: str) -> Case:
    """A case of which a table of the configuration does not state these."""
    table = make_config(all_cases()[name]).to_dict()[key]
    return tiny(name, **{key: {k: v for k, v in table.items() if k not in left_out}})


INNER = ("text_config", "vision_config")
BESIDE: dict[str, Any] = {"rope_parameters": None, "partial_rotary_factor": 0.5}
OWN_BASE = {"rope_type": "default", "rope_theta": 500.0}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 500.0}
BART = Case(name="bart", kind="encoder_decoder", model_class="BartForConditionalGeneration")

READ = {
    "dynamic, with an original length": llama(
        **OLDER, rope_scaling={**YARN, "rope_type": "dynamic"}, max_position_embeddings=7
    ),
    "the original length outside too": llama(
        **OLDER, rope_scaling=LLAMA3, original_max_position_embeddings=16
    ),
    "the original length outside, of yarn": llama(
        rope_parameters={**YARN, "rope_theta": 500.0}, original_max_position_embeddings=16
    ),
    "the original length outside, and dynamic": llama(
        **OLDER,
        rope_scaling={"type": "dynamic", "factor": 4.0},
        original_max_position_embeddings=4,
        max_position_embeddings=7,
    ),
    "the original length outside, of temperatures too": tiny(
        "ministral3", original_max_position_embeddings=6
    ),
    "the original length outside goes first": phi3(**OLDER, rope_scaling=OLD_LONG),
    "a share where all is rotated": llama(partial_rotary_factor=0.5),
    "a share in the table where all is rotated": llama(
        rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5}
    ),
    "a share in two words": gpt_neox(rotary_pct=1.0),
    "a share in its older word": gpt_neox(rope_parameters=None, rotary_pct=1.0),
    "a share beside the table, and no table": tiny("qwen3_next", **BESIDE),
    "a share beside the table, of three positions": tiny("qwen3_5_moe_text", **BESIDE),
    "a share beside the table, of a hybrid": tiny(
        "recurrent_gemma", rope_parameters=None, partial_rotary_factor=0.25
    ),
    "a share beside the table, of a pair": tiny("moonshine", **BESIDE),
    "old and new that agree": llama(
        rope_parameters={**YARN, "rope_theta": 500.0}, rope_scaling=YARN, rope_theta=500.0
    ),
    "nulls": llama(
        rope_parameters={**YARN, "factor": None, "beta_fast": None, "attention_factor": None},
        rope_theta=500.0,
        rope_scaling=None,
    ),
    "the activation of its own word": Case(
        name="t5",
        kind="encoder_decoder",
        model_class="T5ForConditionalGeneration",
        shrunk={".q.": 0.35},
        published={"dense_act_fn": "silu"},
    ),
    "a share of the pairs": llama(rope_parameters={**PROPORTIONAL, "partial_rotary_factor": 0.5}),
    "a share of the pairs, outside": llama(rope_parameters=PROPORTIONAL, partial_rotary_factor=0.5),
    "a share of the pairs, which knows no original length": llama(
        rope_parameters={**PROPORTIONAL, "partial_rotary_factor": 0.5},
        original_max_position_embeddings=16,
    ),
    "a share of the pairs, clockwise": tiny(
        "nanochat", rope_parameters={**PROPORTIONAL, "partial_rotary_factor": 0.5}
    ),
    "another base than that of the frequencies, which are stored": tiny("esm", rope_theta=500.0),
    "positions counted from another padding": tiny("m2m_100", pad_token_id=7),
    "a source of which all is padding": tiny("speech_to_text", pad_token_id=0),
    "a head that is said to be untied": tiny("mt5", tie_word_embeddings=False),
    "a head that only the text says is tied": inside(
        "qwen3_vl", "text_config", tie_word_embeddings=True
    ),
    "a head that only the text says is tied, of layers with a state": inside(
        "qwen3_5", "text_config", tie_word_embeddings=True
    ),
    "a head that is said to be untied, and is scaled": tiny("umt5", tie_word_embeddings=False),
    "a window without the token itself, as published": tiny("mimo_v2_flash", sliding_window_size=3),
    "windows and bases of each layer, as published": tiny(
        "ultrabert",
        layer_types=None,
        rope_parameters=None,
        attention_windows=[None, 2, 2],
        rope_theta=[500.0, 300.0, 900.0],
    ),
    "a base for a type of layers that is not stated": tiny(
        "ultrabert",
        rope_parameters={"full_attention": {"rope_type": "default"}, "sliding_attention": OWN_BASE},
    ),
    "a base beside the table, which is not that of the windows": gemma3(
        rope_parameters={"full_attention": OWN_BASE, "sliding_attention": {"rope_type": "default"}},
        rope_theta=300.0,
    ),
    "a base of the windows beside the table": gemma3(
        rope_parameters={"full_attention": OWN_BASE, "sliding_attention": {"rope_type": "default"}},
        rope_local_base_freq=300.0,
    ),
    "types of layers whose tables are null": gemma3(
        rope_parameters={"full_attention": None, "sliding_attention": None}, rope_theta=300.0
    ),
    "the same, in another family": tiny(
        "olmo3",
        rope_parameters={"full_attention": None, "sliding_attention": None},
        rope_theta=300.0,
    ),
    "bases for types of layers beside the table, in their own words": tiny(
        "modernbert", rope_parameters=None, rope_theta=300.0, local_rope_theta=500.0
    ),
    "a base in its own word": tiny("gpt_neox", rope_parameters=None, rope_theta=300.0),
    "a base beside the settings of a grid": tiny(
        "mlcd_vision_model", rope_parameters=None, rope_theta=300.0
    ),
    "a table without a base, where one without positions says null": tiny(
        "olmo_hybrid", rope_parameters={"rope_type": "default"}, rope_theta=300.0
    ),
    "a base that is null, without a table": tiny(
        "olmo_hybrid", rope_parameters=None, rope_theta=None
    ),
    "an empty table, where settings of Llama 3 are usual": tiny("cwm", rope_parameters={}),
    "an empty table, with a base beside it": tiny("apertus", rope_parameters={}, rope_theta=300.0),
    "an empty table, where those of yarn are usual": tiny("gpt_oss", rope_parameters={}),
    "empty tables of types of layers": tiny(
        "lfm3", rope_parameters={"sliding_attention": {}, "full_attention": {}}, rope_theta=300.0
    ),
    "empty tables of which one has the base beside them": tiny(
        "gemma3n_text",
        rope_parameters={"sliding_attention": {}, "full_attention": {}},
        rope_theta=300.0,
    ),
    "a share beside no table, which is not read": tiny(
        "beam", rope_parameters=None, partial_rotary_factor=0.5
    ),
    "a share beside no table, of windows": tiny(
        "lfm3", rope_parameters=None, partial_rotary_factor=0.5
    ),
    "a share of windows in the table, which is not read": tiny(
        "gemma4_text",
        rope_parameters={
            "full_attention": {**PROPORTIONAL, "partial_rotary_factor": 0.5},
            "sliding_attention": {**OWN_BASE, "partial_rotary_factor": 0.5},
        },
    ),
    "a base beside the settings of images": inside(
        "qwen2_vl", "vision_config", rope_parameters=None, rope_theta=300.0
    ),
    "a base beside the settings of images in Qwen3-VL": inside(
        "qwen3_vl", "vision_config", rope_parameters=None, rope_theta=300.0
    ),
    "branches that are multiplied with nothing": tiny("minicpm3", scale_depth=0.0),
    "no settings, where those of yarn are usual": tiny("ministral3", rope_parameters=None),
    "settings in their older word, with temperatures": tiny(
        "ministral3", rope_parameters=None, rope_scaling=YARN | {"llama_4_scaling_beta": 0.3}
    ),
    "an epsilon that the encoder does not state": without(
        "encoder-decoder", "encoder", "layer_norm_eps"
    ),
    "an epsilon that the encoder of images does not state": without(
        "vision-encoder-decoder", "encoder", "layer_norm_eps"
    ),
    "bounds that the decoder does not state": without(
        "t5gemma", "decoder", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window"
    ),
    "mixtures in every second layer": replace(
        with_config(
            "axk1", num_hidden_layers=4, mlp_layer_types=[*["dense"] * 2, "sparse", "dense"]
        ),
        published={"mlp_layer_types": None, "moe_layer_freq": 2},
    ),
    "older words of Mamba-2": tiny(
        "nemotron_h",
        **dict.fromkeys(("n_groups", "conv_kernel", "use_conv_bias", "time_step_min")),
        mamba_n_groups=2,
        mamba_d_conv=4,
        mamba_conv_bias=True,
        mamba_dt_min=0.9,
        layers_block_type=None,
        hybrid_override_pattern="ME*-M",
    ),
    "the number of experts in its older word": tiny(
        "deepseek_v32", n_routed_experts=None, num_experts=4
    ),
    "types of tasks that nothing tells apart": tiny("ernie", task_type_vocab_size=4),
    "half of a window": tiny("modernbert", sliding_window=2, local_attention=8),
    "half of a window, of a decoder": tiny("modernbert-decoder", sliding_window=2),
    "no class": llama(architectures=[]),
    "no class, of an encoder": tiny("bert", architectures=[]),
    "no class, of a pair": replace(BART, published={"architectures": []}),
    "a class of before transformers 4": tiny("t5", architectures=["T5WithLMHeadModel"]),
    "a base that is stretched": tiny("hunyuan_v1_dense", **OLDER, rope_scaling=STRETCHED),
    "a length that nothing ends at": tiny("codegen", n_ctx=16),
    "a table that says more": llama(**OLDER, rope_scaling={**YARN, "finetuned": True}),
    "terms in one text": tiny("deberta-v2", pos_att_type="p2c|c2p"),
    "sinusoids that count what is no padding": with_config(
        "trocr", use_learned_position_embeddings=False
    ),
    "the same under an encoder of images": with_config(
        "vision-encoder-decoder.trocr",
        decoder={
            **all_cases()["vision-encoder-decoder.trocr"].config["decoder"],
            "activation_function": "relu",
            "scale_embedding": True,
            "use_learned_position_embeddings": False,
            "layernorm_embedding": False,
            "tie_word_embeddings": False,
        },
    ),
    "a window of no layer": gemma3(layer_types=["full_attention"] * 3),
    "a window of no layer, of an encoder": tiny("modernbert", layer_types=["full_attention"] * 4),
    "a window of no layer, of a pair": inside(
        "t5gemma", "encoder", layer_types=["full_attention"] * 2
    ),
    "biases of the attention": with_config("beam", attention_bias=True),
    "biases of the attention, but for its outputs": with_config(
        "mimo_v2_flash", attention_bias=True
    ),
    "a hybrid of attention alone": with_config(
        "granitemoehybrid", layer_types=["full_attention"] * 3, position_embedding_type="rope"
    ),
    "a hybrid of attention alone, by indices": with_config("bamba", attn_layer_indices=[0, 1, 2]),
    "a hybrid without attention": with_config("bamba", attn_layer_indices=[]),
    "no layer that predicts a second token": tiny("deepseek_v3", num_nextn_predict_layers=0),
    "experts in no layer": with_config("deepseek_v3", first_k_dense_replace=2),
    "experts of all groups": with_config(
        "deepseek_v2", topk_method="group_limited_greedy", n_group=2, topk_group=2
    ),
    "experts in all layers of a pair": with_config(
        "switch_transformers", num_sparse_encoder_layers=2, num_sparse_decoder_layers=2
    ),
    "weights of experts that are not normalised": with_config("beam", norm_topk_prob=False),
    "temperatures of no layer": with_config("beam", layer_types=["sliding_attention"] * 2),
    "gates of elements, by no word": with_config("laguna", gating=False),
    "rotary positions of no layer": with_config("afmoe", layer_types=["full_attention"] * 4),
    "heads of no layer": with_config("lfm2_moe", layer_types=["conv"] * 3),
    "positions of every second layer": with_config("llama4_text", no_rope_layer_interval=2),
    "a number of classes, without names": replace(
        all_cases()["bert.sequence"],
        config={**all_cases()["bert.sequence"].config, "num_labels": 5},
        published={"id2label": None, "label2id": None, "num_labels": 5},
    ),
    "a number of classes, without names, of a decoder": replace(
        with_config("llama", num_labels=5),
        model_class="LlamaForSequenceClassification",
        published={"id2label": None, "label2id": None, "num_labels": 5},
    ),
    "a pooling that the head has no use for": tiny("eurobert", classifier_pooling="mean"),
    "what whisper does in training": tiny("whisper", apply_spec_augment=True, mask_time_prob=0.1),
    "a pair with a head of its own": with_config("t5gemma", tie_word_embeddings=False),
    "both directions": llama(is_causal=False),
    "both directions, by windows": case(
        "mistral", "MistralForCausalLM", {"sliding_window": 4}, is_causal=False
    ),
    "both directions, in some layers by windows": case(
        "gemma2", "Gemma2ForCausalLM", {"sliding_window": 4}, is_causal=False
    ),
    "both directions, in layers that could have windows": case(
        "qwen2", "Qwen2ForCausalLM", {}, is_causal=False
    ),
    "a copy of an inner table, which goes first": tiny(
        "clip",
        text_config={"hidden_act": "relu"},
        text_config_dict=all_cases()["clip"].config["text_config"],
        vision_config_dict=None,
    ),
    "inner tables that say less": tiny(
        "siglip", **{key: all_cases()["siglip"].config[key] for key in INNER}
    ),
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_read_as_transformers_reads_it(case: Case, tmp_path: Path) -> None:
    truth = make_truth(case, tmp_path / "original")
    import_folder(truth.folder, tmp_path / "imported", registry=registry())
    report = Report()
    compare_outputs(truth, tmp_path / "imported", report)
    assert report.faults == []


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_inner_tables_have_the_defaults_of_transformers(name: str, tmp_path: Path) -> None:
    config = CONFIG_MAPPING[name]()
    whole = json.loads(config.to_json_string(use_diff=False))
    specs = []
    for tables in ({}, {key: {} for key in INNER}, {key: whole[key] for key in INNER}):
        write_config(tmp_path, {"model_type": name, **tables})
        families = Families(registry())
        file = read_json(tmp_path / "config.json")
        scope = families.scope(families.family_of(file), file, frozenset())
        specs.append(family_spec(scope, "m", registry()).to_dict())
    assert specs[0] == specs[1] == specs[2]
    assert specs[0]["text"]["d_model"] == config.text_config.hidden_size
    assert specs[0]["image"]["n_layers"] == config.vision_config.num_hidden_layers


FULL = {"vision_feature_select_strategy": "full"}
NEXT = {"image_grid_pinpoints": [[224, 448], [448, 224]]}
"""Tiles of the images of CLIP and SigLIP, which are not those of LLaVA-NeXT."""


@pytest.mark.parametrize(
    ("model_type", "text", "vision", "stated", "n_unread"),
    [
        ("llava", None, None, FULL, 1),
        ("llava", "llama", "clip_vision_model", FULL, 1),
        ("llava", "mistral", "clip_vision_model", FULL, 1),
        ("llava", "qwen2", "siglip_vision_model", FULL, 1),
        ("llava", "mistral", "pixtral", {**FULL, "vision_feature_layer": -1}, 0),
        ("llava_next", None, None, {}, 1),
        ("llava_next", "llama", "clip_vision_model", NEXT, 1),
        ("llava_next", "mistral", "siglip_vision_model", {**FULL, **NEXT}, 1),
        ("llava_next", "qwen2", "clip_vision_model", NEXT, 1),
        ("llava_onevision", None, None, {}, 0),
        ("llava_onevision", "qwen2", "siglip_vision_model", NEXT, 0),
        ("mistral3", None, None, {}, 0),
        ("mistral3", "mistral", "pixtral", {}, 0),
        ("mistral3", "ministral3", "pixtral", {}, 0),
        ("gemma3", None, None, {"mm_tokens_per_image": 49}, 0),
        ("paligemma", None, None, {}, 0),
        ("paligemma", "gemma", "siglip_vision_model", {}, 0),
        ("paligemma", "gemma2", "siglip_vision_model", {}, 0),
        ("idefics3", None, None, {"scale_factor": 7}, 0),
        ("smolvlm", "llama", "smolvlm_vision", {"scale_factor": 7}, 0),
        ("internvl", None, None, {}, 0),
        ("internvl", "llama", "internvl_vision", {}, 0),
        ("internvl", "qwen2", "internvl_vision", {}, 0),
        ("internvl", "qwen3", "internvl_vision", {}, 0),
        ("qwen2_vl", None, None, {}, 0),
        ("qwen2_vl", "qwen2_vl_text", "qwen2_vl_vision", {}, 0),
        ("qwen2_5_vl", None, None, {}, 0),
        ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_vl_vision", {}, 0),
        ("qwen3_vl", None, None, {}, 0),
        ("qwen3_vl", "qwen3_vl_text", "qwen3_vl_vision", {}, 0),
        ("qwen3_vl_moe", None, None, {}, 0),
        ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", {}, 0),
        ("qwen3_5", None, None, {}, 0),
        ("qwen3_5", "qwen3_5_text", "qwen3_5_vision", {}, 0),
        ("qwen3_5_moe", None, None, {}, 0),
        ("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_moe_vision", {}, 0),
    ],
)
def test_decoders_with_images_have_the_defaults_of_transformers(
    model_type: str,
    text: str | None,
    vision: str | None,
    stated: dict[str, Any],
    n_unread: int,
    tmp_path: Path,
) -> None:
    types = {"text_config": text, "vision_config": vision}
    inner = {key: {"model_type": name} for key, name in types.items() if name is not None}
    config = CONFIG_MAPPING[model_type](**inner, **stated, image_token_id=5)
    whole = json.loads(config.to_json_string(use_diff=False))
    image_id = {key: 5 for key in ("image_token_index", "image_token_id") if key in whole}
    specs = []
    for tables in (inner, {key: whole[key] for key in INNER}):
        write_config(tmp_path, {"model_type": model_type, **image_id, **stated, **tables})
        families = Families(registry())
        file = read_json(tmp_path / "config.json")
        scope = families.scope(families.family_of(file), file, frozenset())
        specs.append(family_spec(scope, "m", registry()).to_dict())
    assert specs[0] == specs[1]
    assert specs[0]["vocab"] == config.text_config.vocab_size
    vision = config.vision_config
    assert specs[0]["image"]["d_model"] == getattr(vision, "embed_dim", vision.hidden_size)
    assert specs[0]["image"]["n_layers"] == vision.num_hidden_layers - n_unread


@pytest.mark.parametrize(
    ("model_type", "text"),
    [
        ("qwen2_audio", None),
        ("qwen2_audio", "llama"),
        ("qwen2_audio", "mistral"),
        ("audioflamingo3", None),
        ("voxtral", None),
        ("voxtral", "llama"),
        ("glmasr", None),
    ],
)
def test_decoders_with_sounds_have_the_defaults_of_transformers(
    model_type: str, text: str | None, tmp_path: Path
) -> None:
    inner = {} if text is None else {"text_config": {"model_type": text}}
    config = CONFIG_MAPPING[model_type](**inner, audio_token_id=5)
    whole = json.loads(config.to_json_string(use_diff=False))
    specs = []
    for stated in ({"audio_token_id": 5, "audio_token_index": 5, **inner}, whole):
        write_config(tmp_path, {**stated, "model_type": model_type})
        families = Families(registry())
        file = read_json(tmp_path / "config.json")
        scope = families.scope(families.family_of(file), file, frozenset())
        specs.append(family_spec(scope, "m", registry()))
    assert specs[0].to_dict() == specs[1].to_dict()
    with torch.device("meta"):
        theirs = getattr(transformers, all_cases()[model_type].model_class)(config)
    assert specs[0].n_parameters == sum(one.numel() for one in theirs.parameters())


OF_QWEN: dict[str, Any] = {
    "hidden_act": "silu",
    "num_hidden_layers": 28,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 28,
    "image_token_id": 151655,
    "vision_token_id": 151654,
}
OF_IMAGES = {
    "depth": 32,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_patch_size": 14,
}
OF_MISTRAL = {
    "image_token_index": 10,
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
}
TEXT_OF_MISTRAL = {
    "model_type": "mistral",
    "head_dim": 128,
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
}
IMAGES_OF_MISTRAL = {
    "model_type": "pixtral",
    "head_dim": 64,
    "hidden_act": "silu",
    "intermediate_size": 4096,
    "rope_theta": 10000.0,
}
SIZED: dict[str, tuple[dict[str, Any], int]] = {
    "qwen2_vl": (
        {
            **OF_QWEN,
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "vision_config": {**OF_IMAGES, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 1536},
        },
        2_208_985_600,
    ),
    "qwen2_5_vl": (
        {
            **OF_QWEN,
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
            "vision_config": {
                **OF_IMAGES,
                "hidden_act": "silu",
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "out_hidden_size": 3584,
                "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31],
                "tokens_per_second": 2,
            },
        },
        8_292_166_656,
    ),
    "qwen3_vl": (
        {
            "image_token_id": 151655,
            "tie_word_embeddings": True,
            "text_config": {
                "model_type": "qwen3_vl_text",
                "attention_bias": False,
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 2560,
                "intermediate_size": 9728,
                "max_position_embeddings": 262144,
                "num_attention_heads": 32,
                "num_hidden_layers": 36,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-6,
                "rope_scaling": {
                    "mrope_interleaved": True,
                    "mrope_section": [24, 20, 20],
                    "rope_type": "default",
                },
                "rope_theta": 5000000,
                "tie_word_embeddings": True,
                "vocab_size": 151936,
            },
            "vision_config": {
                "model_type": "qwen3_vl",
                "deepstack_visual_indexes": [5, 11, 17],
                "depth": 24,
                "hidden_act": "gelu_pytorch_tanh",
                "hidden_size": 1024,
                "in_channels": 3,
                "intermediate_size": 4096,
                "num_heads": 16,
                "num_position_embeddings": 2304,
                "out_hidden_size": 2560,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
        },
        4_437_815_808,
    ),
    "internvl": (
        {
            "downsample_ratio": 0.5,
            "image_seq_length": 256,
            "image_token_id": 151667,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "text_config": {
                "model_type": "qwen2",
                "hidden_act": "silu",
                "hidden_size": 896,
                "intermediate_size": 4864,
                "max_position_embeddings": 32768,
                "max_window_layers": 21,
                "num_attention_heads": 14,
                "num_hidden_layers": 24,
                "num_key_value_heads": 2,
                "rms_norm_eps": 1e-6,
                "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
                "rope_theta": 1000000.0,
                "sliding_window": None,
                "use_sliding_window": False,
                "vocab_size": 151674,
            },
            "vision_config": {
                "model_type": "internvl_vision",
                "attention_bias": True,
                "hidden_act": "gelu",
                "hidden_size": 1024,
                "image_size": [448, 448],
                "intermediate_size": 4096,
                "layer_norm_eps": 1e-6,
                "layer_scale_init_value": 0.1,
                "norm_type": "layer_norm",
                "num_attention_heads": 16,
                "num_channels": 3,
                "num_hidden_layers": 24,
                "patch_size": [14, 14],
                "projection_dropout": 0.0,
                "use_absolute_position_embeddings": True,
                "use_mask_token": False,
                "use_mean_pooling": True,
                "use_qk_norm": False,
            },
        },
        938_193_024,
    ),
    "llava": (
        {
            **OF_MISTRAL,
            "image_seq_length": 1,
            "vision_feature_select_strategy": "full",
            "text_config": {
                **TEXT_OF_MISTRAL,
                "is_composition": True,
                "intermediate_size": 14336,
                "max_position_embeddings": 1024000,
            },
            "vision_config": {
                **IMAGES_OF_MISTRAL,
                "is_composition": True,
                "image_size": 1024,
                "patch_size": 16,
                "tie_word_embeddings": False,
            },
        },
        12_682_739_712,
    ),
    "mistral3": (
        {
            **OF_MISTRAL,
            "multimodal_projector_bias": False,
            "spatial_merge_size": 2,
            "text_config": {
                **TEXT_OF_MISTRAL,
                "intermediate_size": 32768,
                "max_position_embeddings": 131072,
                "num_attention_heads": 32,
            },
            "vision_config": {**IMAGES_OF_MISTRAL, "image_size": 1540, "patch_size": 14},
        },
        24_011_361_280,
    ),
    "kimi_linear": (
        {
            "vocab_size": 163840,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "moe_intermediate_size": 1024,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 72,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "mla_use_nope": True,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [n for n in range(1, 27) if n % 4],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
            "num_experts": 256,
            "num_experts_per_token": 8,
            "num_shared_experts": 1,
            "num_expert_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "routed_scaling_factor": 2.446,
            "use_grouped_topk": True,
            "num_nextn_predict_layers": 0,
            "model_max_length": 1048576,
            "tie_word_embeddings": False,
        },
        49_122_675_072,
    ),
}
"""Configurations as they are published, and the numbers of parameters of their checkpoints: those
of Qwen2-VL 2B, Qwen2.5-VL 7B, Qwen3-VL 4B, InternVL3 1B, Pixtral 12B, Mistral Small 3.1 24B and
Kimi Linear 48B."""


@pytest.mark.parametrize("model_type", SIZED)
def test_published_configurations_are_of_the_published_sizes(
    model_type: str, tmp_path: Path
) -> None:
    stated, n_parameters = SIZED[model_type]
    write_config(tmp_path, {"model_type": model_type, **stated})
    families = Families(registry())
    file = read_json(tmp_path / "config.json")
    # Those of Mistral Small 3.1 and InternVL3 do not say that the head has weights of its own.
    own = model_type in ("mistral3", "internvl")
    head = {"language_model.lm_head.weight"} if own else set()
    scope = families.scope(families.family_of(file), file, frozenset(head))
    assert family_spec(scope, "m", registry()).n_parameters == n_parameters
    check_read(scope, families)


REFUSED = {
    "another decoder around images": (
        inside("llava", "text_config", model_type="opt"),
        "a decoder that is none of Llama, Mistral and Qwen2 is not read",
    ),
    "another decoder in Mistral 3": (
        inside("mistral3", "text_config", model_type="llama"),
        "a decoder that is neither Mistral nor Ministral 3 is not read",
    ),
    "another encoder of images in Mistral 3": (
        inside("mistral3", "vision_config", model_type="siglip_vision_model"),
        "an encoder of images that is not that of Pixtral is not read",
    ),
    "patches that are not merged": (
        tiny("mistral3", spatial_merge_size=1),
        "a map of single patches, with a spatial_merge_size of 1, is not read",
    ),
    "another decoder around sounds": (
        inside("qwen2_audio", "text_config", model_type="opt"),
        "a decoder that is none of Llama, Mistral and Qwen2 is not read",
    ),
    "another encoder of sounds": (
        inside("qwen2_audio", "audio_config", model_type="whisper"),
        "an encoder of sounds of another model is not read",
    ),
    "sounds without a token": (
        tiny("voxtral", audio_token_id=None),
        "a configuration without audio_token_id does not say where sounds stand",
    ),
    "states that do not become one": (
        inside("voxtral", "audio_config", intermediate_size=120),
        "intermediate_size is not that of a number of its states",
    ),
    "states of two windows in one": (
        inside("voxtral", "audio_config", max_source_positions=10),
        "into which max_source_positions can be divided, is not read",
    ),
    "another number of merged states": (
        inside("glmasr", "audio_config", intermediate_size=64),
        "an encoder whose intermediate_size is not four times its hidden_size is not read",
    ),
    "windows around images": (
        inside("llava.qwen2", "text_config", use_sliding_window=True),
        "windows in the layers of Qwen2 are not read",
    ),
    "another encoder of images in a text": (
        inside("llava", "vision_config", model_type="vit"),
        "none of those of CLIP, SigLIP and Pixtral is not read",
    ),
    "images of another encoder in Gemma 3": (
        inside("gemma3", "vision_config", model_type="vit"),
        "an encoder of images that is not that of SigLIP is not read",
    ),
    "another decoder in Gemma 3": (
        inside("gemma3", "text_config", model_type="llama"),
        "a decoder that is not that of Gemma 3 is not read",
    ),
    "another decoder in Qwen2-VL": (
        inside("qwen2_vl", "text_config", model_type="qwen2"),
        "a decoder of another model type is not read",
    ),
    "another encoder of images in Qwen2-VL": (
        inside("qwen2_vl", "vision_config", model_type="qwen2_5_vl"),
        "an encoder of images of another model type is not read",
    ),
    "windows that are switched off": (
        tiny("qwen2", layer_types=["sliding_attention", "full_attention"]),
        "`layer_types` have windows, and `use_sliding_window` says that there are none",
    ),
    "windows around images of any size": (
        inside("qwen2_vl", "text_config", use_sliding_window=True),
        "windows in the layers of the text are not read",
    ),
    "scaled positions of time, rows and columns": (
        inside("qwen2_vl", "text_config", rope_parameters={**YARN, "mrope_section": [2, 1, 5]}),
        "positions that are scaled for longer texts are not read",
    ),
    "positions whose pairs do not take turns": (
        inside(
            "qwen3_vl",
            "text_config",
            rope_parameters={"mrope_section": [5, 2, 3], "mrope_interleaved": False},
        ),
        "positions whose pairs do not take turns are not read",
    ),
    "another order of rows and columns": (
        inside("qwen3_vl", "text_config", rope_parameters={"mrope_section": [3, 2, 5]}),
        "every third of 10 pairs is that of the row, .* not the 2 and 5 that `sections` says",
    ),
    "scaled positions in turn": (
        inside("qwen3_vl", "text_config", rope_parameters={**YARN, "mrope_section": [5, 2, 3]}),
        "positions that are scaled for longer texts are not read",
    ),
    "scaled positions in turn, of some layers": (
        inside(
            "qwen3_5",
            "text_config",
            rope_parameters={**YARN, "partial_rotary_factor": 0.25, "mrope_section": [2, 2, 1]},
        ),
        "positions that are scaled for longer texts are not read",
    ),
    "positions whose pairs do not take turns, of some layers": (
        inside(
            "qwen3_5",
            "text_config",
            rope_parameters={"mrope_section": [2, 2, 1], "mrope_interleaved": False},
        ),
        "positions whose pairs do not take turns are not read",
    ),
    "the text of another model type": (
        inside("qwen3_5", "text_config", model_type="qwen3_5_moe_text"),
        "a decoder of another model type is not read",
    ),
    "the images of another model type": (
        inside("qwen3_5", "vision_config", model_type="qwen3_vl_vision"),
        "an encoder of images of another model type is not read",
    ),
    "a grid that is no square, without inner states": (
        inside("qwen3_5", "vision_config", num_position_embeddings=24),
        "a num_position_embeddings that is no square is not read",
    ),
    "a grid that is no square": (
        inside("qwen3_vl", "vision_config", num_position_embeddings=24),
        "a num_position_embeddings that is no square is not read",
    ),
    "the states of a layer that is not there": (
        inside("qwen3_vl", "vision_config", deepstack_visual_indexes=[0, 4]),
        "layer 4 of `deep_layers` is beyond the 4 layers of `image`",
    ),
    "patches that are no squares": (
        tiny("gemma3", mm_tokens_per_image=12),
        "patches that are no whole squares for each state are not read",
    ),
    "a value of an inner table that nothing reads": (
        inside("encoder-decoder", "decoder", tie_word_embeddings=False),
        "json:[0-9]+:[0-9]+: error: `tie_word_embeddings` in `decoder` is false, and nothing reads "
        "it; only its default, true, is supported",
    ),
    "another decoder in PaliGemma": (
        inside("paligemma", "text_config", model_type="llama"),
        "a decoder that is neither Gemma nor Gemma 2 is not read",
    ),
    "another decoder in Idefics3": (
        inside("idefics3", "text_config", model_type="mistral"),
        "a decoder that is not Llama is not read",
    ),
    "tiles that are cut": (
        tiny("llava_next", image_grid_pinpoints=[[12, 24], [30, 12]]),
        "an image_grid_pinpoints that is no whole number of tiles is not read",
    ),
    "the class token of tiles": (
        tiny("llava_next", vision_feature_select_strategy="full"),
        "the state of a class token is not read, nor are all but the first of other states",
    ),
    "another encoder of tiles": (
        inside("llava_next", "vision_config", model_type="pixtral"),
        "an encoder of images that is neither that of CLIP nor that of SigLIP is not read",
    ),
    "another decoder around tiles": (
        inside("llava_onevision", "text_config", model_type="qwen3"),
        "a decoder that is none of Llama, Mistral and Qwen2 is not read",
    ),
    "another encoder of tiles in LLaVA-OneVision": (
        inside("llava_onevision", "vision_config", model_type="vit"),
        "an encoder of images that is neither that of CLIP nor that of SigLIP is not read",
    ),
    "no most tiles": (
        tiny("llava_onevision", vision_aspect_ratio="anyres"),
        "a vision_aspect_ratio that does not state how many tiles there are at most",
    ),
    "another decoder in InternVL": (
        inside("internvl", "text_config", model_type="mistral"),
        "a decoder that is none of Llama, Qwen2 and Qwen3 is not read",
    ),
    "windows in InternVL": (
        inside("internvl", "text_config", use_sliding_window=True),
        "windows in the layers of the text are not read",
    ),
    "images that are not square": (
        inside("internvl", "vision_config", image_size=[12, 16]),
        "images that are not square are not read",
    ),
    "patches that are not square": (
        inside("internvl", "vision_config", patch_size=[2, 4]),
        "patches that are not square are not read",
    ),
    "the state of a class token among those of squares": (
        tiny("internvl", vision_feature_select_strategy="full"),
        "the state of the class token is not read",
    ),
    "squares of patches that are cut": (
        tiny("internvl", downsample_ratio=0.4),
        "a downsample_ratio that makes no state of whole squares of patches is not read",
    ),
    "a layer beyond the last": (
        tiny("internvl", vision_feature_layer=3),
        "the states of images are read after a layer of their encoder",
    ),
    "patches whose positions are rounded": (
        inside("idefics3", "vision_config", image_size=38),
        "positions transformers may round to those of others are not read",
    ),
    "a text that sees later tokens": (
        inside("gemma3", "text_config", use_bidirectional_attention=True),
        "texts in which all tokens attend to later ones are not read",
    ),
    "a text of Gemma 4 that sees later tokens": (
        inside("gemma4", "text_config", use_bidirectional_attention="all"),
        "texts in which all tokens attend to later ones are not read",
    ),
    "a Gemma 4 without an encoder of images": (
        tiny("gemma4", vision_config=None),
        "without an encoder of images, it is a gemma4_text",
    ),
    "inputs of layers with another padding": (
        inside("gemma4", "text_config", pad_token_id=3),
        "or with another padding than 0, are not read",
    ),
    "patches with positions of texts": (
        inside("gemma4", "vision_config", rope_parameters={"rope_type": "linear", "factor": 2.0}),
        "positions of patches of another type than axial are not read",
    ),
    "LFM2-VL with patches that are no squares": (
        inside("lfm2_vl", "vision_config", patch_size=[2, 4]),
        "patches whose height and width are stated apart are not read",
    ),
    "LFM2-VL with places that are no square": (
        inside("lfm2_vl", "vision_config", num_patches=10),
        "a num_patches that is no square is not read",
    ),
    "LFM2-VL with the encoder of SigLIP": (
        inside("lfm2_vl", "vision_config", model_type="siglip_vision_model"),
        "an encoder of images that is not that of SigLIP 2 is not read",
    ),
    "Llama 4 with patches that are no squares": (
        inside("llama4", "vision_config", patch_size=[2, 4]),
        "images or patches whose height and width are stated apart are not read",
    ),
    "Llama 4 with maps that do not fit": (
        inside("llama4", "vision_config", projector_output_dim=16),
        "the maps of the states of images do not fit each other",
    ),
    "Llama 4 with dropout between maps": (
        inside("llama4", "vision_config", projector_dropout=0.1),
        "dropout between the maps of the states of images is not read",
    ),
    "Llama 4 with two thirds of the patches": (
        inside("llama4", "vision_config", pixel_shuffle_ratio=0.66),
        "a pixel_shuffle_ratio that is not 1 over a whole number is not read",
    ),
    "Llama 4 with scaled positions of patches": (
        inside("llama4", "vision_config", rope_parameters={"rope_type": "linear", "factor": 2.0}),
        "positions of patches that are scaled are not read",
    ),
    "Aya Vision without the first patch": (
        tiny("aya_vision", vision_feature_select_strategy="default"),
        "without its first patch, an image without a class token is not read",
    ),
    "Aya Vision with the states of several layers": (
        tiny("aya_vision", vision_feature_layer=[1, 2]),
        "the states of several layers are not read",
    ),
    "another stream than the first": (
        tiny("gemma3n_text", altup_active_idx=1),
        "layers that compute another stream than the first are not read",
    ),
    "inputs of layers that are not scaled": (
        tiny("gemma3n_text", altup_correct_scale=False),
        "layers whose own inputs are gated by what is not scaled are not read",
    ),
    "a Gemma 3n without inputs of layers": (
        tiny("gemma3n_text", hidden_size_per_layer_input=0),
        "without inputs of each layer, it is not read",
    ),
    "the states after the last layer": (
        tiny("llava", vision_feature_layer=-1),
        "the states of images are read after the first layer of their encoder and, unless it is",
    ),
    "the states of several layers": (
        tiny("llava", vision_feature_layer=[-2, -1]),
        "the states of several layers are not read",
    ),
    "without the first patch": (
        tiny("llava.qwen2", vision_feature_select_strategy="default"),
        "without its first patch, an image without a class token is not read",
    ),
    "without the first patch of an image of any size": (
        tiny("llava.pixtral", vision_feature_select_strategy="default"),
        "without its first patch, an image without a class token is not read",
    ),
    "biases that are left out": (
        with_config("bloom", slow_but_exact=True, pretraining_tp=2),
        "`slow_but_exact` with a `pretraining_tp` leaves out biases",
    ),
    "weights of experts that are divided by the number of them that are not 0": (
        inside("dbrx", "ffn_config", moe_normalize_expert_weights=0.0),
        "`normalize_order` .*must be greater than 0",
    ),
    "convolutions that differ in width": (
        tiny("wav2vec2", conv_dim=[24, 24, 20]),
        "its convolutions differ in width: `conv_dim`",
    ),
    "a sum of the states of all layers": (
        tiny("wav2vec2.sequence", use_weighted_layer_sum=True),
        "`use_weighted_layer_sum` is true, and nothing reads it",
    ),
    "states that an adapter shortens": (
        tiny("wav2vec2.base", add_adapter=True),
        "`add_adapter` is true, and nothing reads it",
    ),
    "a norm of batches before convolutions for positions": (
        tiny("hubert", conv_pos_batch_norm=True),
        "`conv_pos_batch_norm` is true, and nothing reads it",
    ),
    "an encoder of images that has no head": (
        inside("siglip", "vision_config", vision_use_head=False),
        "without its head, the encoder of images has no vectors to compare",
    ),
    "both directions, with biases of causal models": (
        case("bloom", "BloomForCausalLM", {}, is_causal=False),
        "`is_causal` is false, and nothing reads it",
    ),
    "both directions, of a target": (
        replace(BART, published={"is_causal": False}),
        "`is_causal` is false, and nothing reads it",
    ),
    "settings that are no table": (
        llama(rope_scaling="linear"),
        "the settings of rotary positions are `linear`, no table",
    ),
    "more layers than anything has": (
        llama(num_hidden_layers=10**15),
        "more than 100,000 numbers",
    ),
    "old and new that differ": (
        llama(rope_parameters={"rope_theta": 500.0}, rope_scaling=YARN),
        "`rope_parameters` and `rope_scaling` describe different positions",
    ),
    "one table for several types of layers": (
        gemma3(rope_parameters={"rope_type": "default", "rope_theta": 700.0}),
        "`rope_parameters` says nothing of `sliding_attention`",
    ),
    "no table for a type of layers": (
        gemma3(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0}}),
        "`rope_parameters` says nothing of `sliding_attention`",
    ),
    "two spellings that say different things": (
        replace(BART, published={"num_attention_heads": 2, "encoder_attention_heads": 4}),
        "`num_attention_heads` is 2 and `encoder_attention_heads` is 4; they mean the same",
    ),
    "layers of a type that is not known": (
        tiny("qwen2", layer_types=["chunked_attention"] * 2),
        "there is no 'chunked_attention'",
    ),
    "rotary positions of another width than the heads": (
        gpt_neox(head_dim=8),
        "does not fit",
    ),
    "another width that is rotated than what is split off for it": (
        with_config("deepseek_v3", head_dim=3),
        "`head_dim` must be that of `qk_rope_head_dim`",
    ),
    "the same, in a family that extends it": (
        with_config("axk1", head_dim=3),
        "`head_dim` must be that of `qk_rope_head_dim`",
    ),
    "no layers": (
        llama(num_hidden_layers=0),
        "`n_layers` must be at least 1, not the integer `0`",
    ),
    "types for fewer layers than there are": (
        replace(
            with_config("qwen2", num_hidden_layers=3),
            published={
                "layer_types": ["full_attention", "sliding_attention"],
                "use_sliding_window": True,
            },
        ),
        "`window` has 2 values, one for each layer, and there are 3 layers",
    ),
    "one type for more layers than there are": (
        tiny("qwen2", layer_types=["full_attention"] * 5),
        "`window` has 5 values, one for each layer, and there are 2 layers",
    ),
    "a scale that transformers does not apply": (
        Case(
            name="whisper",
            kind="decoder",
            model_class="WhisperForCausalLM",
            config={"scale_embedding": True},
        ),
        "`scale_embedding` is true, and nothing reads it",
    ),
    "an epsilon of nothing, which is not that there is none": (
        case("cohere2_moe", "Cohere2MoeForCausalLM", {"rms_norm_eps": 0.0}),
        "`eps` must be greater than 0",
    ),
    "a sum that transformers does not divide by": (
        case("deepseek_v2", "DeepseekV2ForCausalLM", {}, norm_topk_prob=True),
        "`norm_topk_prob` is true, and nothing reads it",
    ),
    "a base that is no number": (
        llama(rope_parameters={"rope_theta": "500.0"}),
        "'500.0' is no number",
    ),
    "a share that is no number": (
        tiny("phi", rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": "0.5"}),
        "'0.5' is no number",
    ),
    "a setting that nothing reads": (
        llama(**OLDER, rope_scaling={**YARN, "alpha": 1000.0}),
        "`alpha`, of the settings of rotary positions, is 1000.0, and nothing reads it",
    ),
    "short factors for long texts": (
        tiny("phimoe", rope_parameters={**PHI, "rope_theta": 500.0}, input_jitter_noise=0.01),
        "transformers takes the short factors for long texts too",
    ),
    "settings of single layers": (
        tiny("mistral", per_layer_config={"0": {"sliding_window": 2}}),
        "`per_layer_config` is .*, and nothing reads it",
    ),
    "a padding that takes a position away": (
        tiny("xglm", pad_token_id=2),
        "`pad_token_id` must be 0 or 1",
    ),
    "scaled positions in layers with bases of their own": (
        tiny("granite_swa", rope_parameters={"rope_theta": 500.0, **YARN}),
        "scaled rotary positions are not read",
    ),
    "the same, in a mixture": (
        tiny("granitemoe_swa", rope_parameters={"rope_theta": 500.0, **YARN}),
        "scaled rotary positions are not read",
    ),
    "scaled positions of an encoder": (
        inside("t5gemma", "encoder", rope_parameters={"rope_theta": 500.0, **YARN}),
        "scaled rotary positions are not read",
    ),
    "scaled positions of a decoder": (
        inside("t5gemma", "decoder", rope_parameters={"rope_theta": 500.0, **YARN}),
        "scaled rotary positions are not read",
    ),
    "a bound of nothing, which is not that there is none": (
        inside("t5gemma", "decoder", attn_logit_softcapping=0.0),
        "`softcap` must be greater than 0",
    ),
    "an encoder in one direction": (
        inside("encoder-decoder", "encoder", is_decoder=True),
        "an encoder that sees no later tokens is not read",
    ),
    "an encoder of images that is neither ViT nor DeiT": (
        inside("vision-encoder-decoder", "encoder", model_type="beit"),
        "an encoder that is neither ViT nor DeiT is not read",
    ),
    "a decoder under images that is neither GPT-2 nor TrOCR": (
        inside("vision-encoder-decoder", "decoder", model_type="bert"),
        "a decoder that is neither GPT-2 nor TrOCR is not read",
    ),
    "a map between an encoder of images and its decoder": (
        inside("vision-encoder-decoder", "encoder", hidden_size=64),
        "a map between an encoder and a decoder of different widths is not read",
    ),
    "the same for TrOCR": (
        inside("vision-encoder-decoder.trocr", "decoder", cross_attention_hidden_size=None),
        "a map between an encoder and a decoder of different widths is not read",
    ),
    "a bias of one map of Mamba-2 alone": (
        with_config("falcon_h1", mamba_proj_bias=True),
        "with a bias in both of its projections or in none",
    ),
    "a factor before a map with a bias": (
        with_config("falcon_h1", mamba_proj_bias=True, projectors_bias=True),
        "`ssm_in_multiplier` is read beside `mamba_proj_bias = false` alone",
    ),
    "a factor before queries with a bias": (
        with_config("falcon_h1", attention_bias=True, attention_in_multiplier=1.5),
        "`attention_in_multiplier` is read beside `attention_bias = false` alone",
    ),
    "a factor of a gate, and a bias after it": (
        with_config("falcon_h1", mlp_bias=True),
        "a factor of the gate is read with SiLU and without `mlp_bias` alone",
    ),
    "convolutions with another activation": (
        tiny("kimi_linear", hidden_act="gelu"),
        "Kimi Delta Attention is read with SiLU alone",
    ),
    "slopes that transformers does not compute": (
        inside("mpt", "attn_config", alibi_bias_max=7),
        "`alibi_bias_max` must be 8",
    ),
    "a choice of experts that transformers does not make": (
        replace(tiny("phimoe"), config={"num_experts_per_tok": 1}),
        "`num_experts_per_tok` is 1, and nothing reads it",
    ),
    "a bound of what is normalised before": (
        tiny("olmoe", clip_qkv=3.0),
        "`clip_qkv` is 3.0, and nothing reads it",
    ),
    "a share of what is split off for positions": (
        tiny(
            "glm4_moe_lite",
            rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5},
        ),
        "a share of what is split off for positions is not read: `partial_rotary_factor`",
    ),
    "scaled positions of a decoder, in an older word": (
        inside("t5gemma", "decoder", rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "scaled rotary positions are not read",
    ),
    "an older word of scaled positions that transformers does not look at": (
        tiny("modernbert", rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}),
        "call it `rope_type` if it is to count",
    ),
    "the same, of a text": (
        gemma3(
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters=None,
            rope_scaling={"type": "linear", "factor": 2.0},
        ),
        "call it `rope_type` if it is to count",
    ),
    "scaled positions that transformers does not look at": (
        tiny("cohere2_moe", rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "which transformers does not look at in this model type",
    ),
    "an epsilon of nothing, of an inner model": (
        inside("aya_vision", "text_config", layer_norm_eps=0.0),
        "`eps` must be greater than 0",
    ),
    "an epsilon of nothing, of a pair": (
        inside("clip", "vision_config", layer_norm_eps=0.0),
        "`eps` must be greater than 0",
    ),
    "scores that are multiplied with nothing": (
        tiny("hyperclovax", attention_multiplier=0.0),
        "`scale` must be greater than 0",
    ),
    "a base of nothing": (llama(rope_parameters=None, rope_theta=0.0), "base"),
    "a router in half precision": (
        tiny("switch_transformers", router_dtype="bfloat16"),
        '`router_dtype` is "bfloat16", and nothing reads it',
    ),
    "a bound that transformers refuses": (
        tiny("iquestcoder", clip_qkv=3.0),
        "`clip_qkv` is 3.0, and nothing reads it",
    ),
    "a bound that transformers does not apply": (
        gemma3(attn_logit_softcapping=3.0),
        "`attn_logit_softcapping` is 3.0, and nothing reads it",
    ),
}


@pytest.mark.parametrize(("case", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(case: Case, message: str, tmp_path: Path) -> None:
    """What no family reads, and what transformers reads otherwise than the words say."""
    save(make_model(case), case, tmp_path / "original")
    with pytest.raises(ZooError, match=message):
        import_folder(tmp_path / "original", tmp_path / "imported", registry=registry())
