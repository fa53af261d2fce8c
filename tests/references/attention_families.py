"""The attention of published families: modules of `transformers`, and our fields for the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils

from zoo_components.norm import LayerNorm, RmsNorm

D_MODEL, HEADS, KV_HEADS, HEAD = 12, 4, 2, 8
WINDOW = 3
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention"]}
FULL = {"layer_types": ["full_attention"]}
EPS = 1e-3


def rms(**fields: Any) -> RmsNorm:
    return RmsNorm(kind="rms_norm", width=HEAD, eps=EPS, **fields)


def layer_norm() -> LayerNorm:
    return LayerNorm(kind="layer_norm", width=HEAD, eps=EPS, bias=False)


@dataclass(frozen=True)
class Family:
    """A module of `transformers`, the equivalent fields of ours, and its arguments.

    Args:
        module: file and class prefix in `transformers.models`.
        config: its configuration, in addition to the common sizes.
        fields: the fields of our description.
        names: maps our tensor names to theirs, where they differ.
        pairs: the pairing of elements by rotary positions; None without them.
        mask: their mask, as a mask function of `transformers.masking_utils`; ours is in `fields`.
        extra: returns further arguments of theirs from the positions.
        first: the first position.
    """

    module: tuple[str, str]
    config: dict[str, Any]
    fields: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    pairs: str | None = "half"
    mask: Callable[..., Tensor] = masking_utils.causal_mask_function
    extra: Callable[[Tensor], dict[str, Any]] = lambda positions: {}
    first: int = 0
    build: Callable[[type, Any], nn.Module] = lambda cls, config: cls(config, 0)


sliding = masking_utils.sliding_window_causal_mask_function(WINDOW)
chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))

FAMILIES: dict[str, Family] = {
    "llama": Family(("llama", "Llama"), {"attention_bias": True}, {"bias": True}),
    "mistral": Family(
        ("mistral", "Mistral"), {"sliding_window": WINDOW}, {"window": WINDOW}, mask=sliding
    ),
    "gemma2": Family(
        ("gemma2", "Gemma2"),
        {"attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 5, **SLIDING},
        {"softcap": 0.7, "scale": 5**-0.5, "window": WINDOW},
        mask=sliding,
    ),
    "gpt_oss": Family(
        ("gpt_oss", "GptOss"),
        {"attention_bias": True, **SLIDING},
        {"bias": True, "sinks": True, "window": WINDOW},
        mask=sliding,
    ),
    "olmo": Family(("olmo", "Olmo"), {"clip_qkv": 0.5}, {"clip": 0.5}),
    "olmo2": Family(
        ("olmo2", "Olmo2"), {"rms_norm_eps": EPS}, {"qk_norm": rms(), "qk_norm_scope": "full"}
    ),
    "qwen3": Family(("qwen3", "Qwen3"), {"rms_norm_eps": EPS, **FULL}, {"qk_norm": rms()}),
    "hunyuan": Family(
        ("hunyuan_v1_dense", "HunYuanDenseV1"),
        {"rms_norm_eps": EPS},
        {"qk_norm": rms(), "qk_norm_site": "after_rotation"},
        {"q_norm": "query_layernorm", "k_norm": "key_layernorm"},
    ),
    "cohere": Family(
        ("cohere", "Cohere"),
        {"use_qk_norm": True, "layer_norm_eps": EPS},
        {"qk_norm": layer_norm(), "qk_norm_scope": "per_head"},
        pairs="interleaved",
    ),
    "bitnet": Family(
        ("bitnet", "BitNet"),
        {"rms_norm_eps": EPS, "hidden_size": HEADS * HEAD},
        {"sub_norm": rms(), "d_model": HEADS * HEAD},
        {"sub_norm": "attn_sub_norm"},
    ),
    "mimo_v2_flash": Family(
        ("mimo_v2_flash", "MiMoV2Flash"),
        {"v_head_dim": 5, "attention_value_scale": 0.707, **SLIDING},
        {"v_head_dim": 5, "v_scale": 0.707, "n_kv_heads": 4, "sinks": True, "window": WINDOW},
        mask=sliding,
    ),
    "gemma4": Family(
        ("gemma4", "Gemma4Text"),
        {"rms_norm_eps": EPS, "attention_k_eq_v": True, "global_head_dim": HEAD, **FULL},
        {"scale": 1.0, "values": "keys", "qk_norm": rms(), "v_norm": rms(weight=False)},
        extra=lambda _: {"shared_kv_states": {}},
    ),
    "llama4 with rotation": Family(
        ("llama4", "Llama4Text"),
        {"use_qk_norm": True, "rms_norm_eps": EPS, "no_rope_layers": [1]},
        {"qk_norm": rms(weight=False), "qk_norm_site": "after_rotation", "chunk": 4},
        pairs="interleaved",
        mask=chunked,
    ),
    "llama4 without": Family(
        ("llama4", "Llama4Text"),
        {
            "attn_temperature_tuning": True,
            "floor_scale": 3,
            "attn_scale": 0.4,
            "no_rope_layers": [0],
        },
        {
            "q_temperature": "log",
            "q_temperature_floor": 3,
            "q_temperature_scale": 0.4,
            "q_temperature_shift": 1,
        },
        pairs=None,
    ),
    "ministral3": Family(
        ("ministral3", "Ministral3"),
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "llama_4_scaling_beta": 0.3,
                "original_max_position_embeddings": 4,
            }
        },
        {"q_temperature": "log", "q_temperature_floor": 4, "q_temperature_scale": 0.3},
        extra=lambda positions: {"position_ids": positions},
        first=6,
    ),
    "beam": Family(
        ("beam", "Beam"),
        {"rms_norm_eps": EPS, **FULL},
        {
            "qk_norm": rms(),
            "q_temperature": "power",
            "q_temperature_floor": 2048,
            "q_temperature_shift": 1,
            "output_gate": "sigmoid",
            "output_gate_bias": "head",
        },
        pairs=None,
        extra=lambda positions: {
            "attention_scaling": import_module(
                "transformers.models.beam.modeling_beam"
            ).compute_attention_scaling(positions)
        },
        first=5000,
    ),
    "afmoe": Family(
        ("afmoe", "Afmoe"),
        {"rms_norm_eps": EPS, **SLIDING},
        {"qk_norm": rms(), "output_gate": "sigmoid", "window": WINDOW},
        mask=sliding,
    ),
    "laguna": Family(
        ("laguna", "Laguna"),
        {"rms_norm_eps": EPS, "gating": "per-head", **FULL},
        {"qk_norm": rms(), "output_gate": "softplus", "output_gate_scope": "head"},
        {"gate_proj": "g_proj"},
        build=lambda cls, config: cls(config, 0, HEADS),
    ),
}
