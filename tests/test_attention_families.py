"""Attention as published families have it, against the modules of `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import masking_utils

from zoo_components.attention import MultiHead
from zoo_components.latent import Latent
from zoo_components.norm import LayerNorm, NoNorm, RmsNorm

LENGTH = 11
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
    """A module of `transformers`, the fields that say the same, and what it is called with.

    Args:
        module: file and class prefix in `transformers.models`.
        config: beside the common sizes.
        fields: of our description.
        names: ours to theirs, where they differ.
        pairs: how rotary positions pair elements; None without them.
        mask: theirs, as a mask function of `transformers.masking_utils`; ours follows from `fields`.
        extra: further arguments of theirs, from the positions.
    """

    module: tuple[str, str]
    config: dict[str, Any]
    fields: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    pairs: str | None = "half"
    mask: Callable[..., Tensor] = masking_utils.causal_mask_function
    extra: Callable[[Tensor], dict[str, Any]] = lambda positions: {}
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


def theirs(family: Family, **sizes: Any) -> nn.Module:
    """Their module with random tensors."""
    folder, prefix = family.module
    package = f"transformers.models.{folder}"
    config_class = getattr(import_module(f"{package}.configuration_{folder}"), f"{prefix}Config")
    config = config_class(num_hidden_layers=1, **sizes | family.config)
    config._attn_implementation = "eager"
    cls = getattr(import_module(f"{package}.modeling_{folder}"), f"{prefix}Attention")
    module = family.build(cls, config)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def same_weights(ours: nn.Module, other: nn.Module, names: dict[str, str]) -> nn.Module:
    """Ours with their tensors. Fails unless `names` maps them one to one."""
    tensors = dict(other.named_parameters())
    renamed = {}
    for name in ours.state_dict():
        first, _, rest = name.partition(".")
        renamed[name] = tensors.pop(f"{names.get(first, first)}.{rest}".rstrip("."))
    assert not tensors
    ours.load_state_dict(renamed)
    return ours.eval()


def angles(positions: Tensor, width: int) -> Tensor:
    """(length, width / 2)."""
    return positions[:, None] / 100.0 ** (torch.arange(0, width, 2) / width)


def rotation(pairs: str, angle: Tensor) -> Callable[[Tensor], Tensor]:
    """Turns the first pairs of (..., length, width), as many as there are angles."""

    def turn(x: Tensor) -> Tensor:
        x, rest = x[..., : 2 * angle.shape[-1]], x[..., 2 * angle.shape[-1] :]
        halves = x.unflatten(-1, (2, -1)).transpose(-1, -2)
        paired = (halves if pairs == "half" else x.unflatten(-1, (-1, 2))).contiguous()
        turned = torch.view_as_complex(paired) * torch.polar(torch.ones_like(angle), angle)
        out = torch.view_as_real(turned)
        out = (out.transpose(-1, -2) if pairs == "half" else out).flatten(-2)
        return torch.cat([out, rest], -1)

    return turn


def their_rotation(family: Family, angle: Tensor) -> Any:
    """The second argument of their `forward`."""
    if family.pairs is None:
        return None
    if family.module[0] == "llama4":
        return torch.polar(torch.ones_like(angle), angle).expand(2, *angle.shape)
    if family.module[0] == "gpt_oss":
        repeated = angle
    elif family.pairs == "interleaved" and family.module[0] != "deepseek_v3":
        repeated = angle.repeat_interleave(2, -1)
    else:
        repeated = torch.cat([angle, angle], -1)
    return tuple(f(repeated).expand(2, *repeated.shape) for f in (torch.cos, torch.sin))


def check_agreement(family: Family, ours: nn.Module, other: nn.Module, rotated: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, LENGTH, other.o_proj.out_features, generator=generator)
    positions = torch.arange(LENGTH)
    angle = angles(positions, rotated)
    ids = torch.arange(LENGTH)
    seen = family.mask(torch.tensor(0), torch.tensor(0), ids[:, None], ids[None, :])
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min).expand(2, 1, LENGTH, LENGTH)
    arguments = family.extra(positions.expand(2, LENGTH))
    expected = other(
        hidden_states=x,
        position_embeddings=their_rotation(family, angle),
        attention_mask=added,
        **arguments,
    )[0]
    turn = None if family.pairs is None else rotation(family.pairs, angle)
    found, _ = ours(x, rotation=turn, causal=True)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_family(family: Family) -> None:
    sizes = {
        "hidden_size": D_MODEL,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
    }
    other = theirs(family, **sizes)
    stated = {"d_model": D_MODEL, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": HEAD}
    norm = NoNorm(kind="none", width=D_MODEL)
    stated |= {"bias": False} | family.fields
    ours = MultiHead(kind="multi_head", norm=norm, **stated).build()
    check_agreement(family, same_weights(ours, other, family.names), other, HEAD)


@pytest.mark.parametrize("rank", [None, 7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_deepseek_v3(rank: int | None, bias: bool, pairs: str) -> None:
    sizes = {
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
    }
    config = {
        "q_lora_rank": rank,
        "attention_bias": bias and rank is not None,
        "rope_interleave": pairs == "interleaved",
    }
    names = {
        "q_a_norm": "q_a_layernorm",
        "kv_a_norm": "kv_a_layernorm",
        "kv_a_proj": "kv_a_proj_with_mqa",
    }
    family = Family(("deepseek_v3", "DeepseekV3"), config | sizes, {}, names, pairs)
    other = theirs(
        family, hidden_size=D_MODEL, num_attention_heads=HEADS, num_key_value_heads=HEADS
    )
    norm = NoNorm(kind="none", width=D_MODEL)
    ours = Latent(
        kind="latent",
        d_model=D_MODEL,
        n_heads=HEADS,
        norm=norm,
        q_lora_rank="none" if rank is None else rank,
        bias=config["attention_bias"],
        **sizes,
    ).build()
    check_agreement(family, same_weights(ours, other, names), other, 4)


def test_stablelm() -> None:
    """Its norms are modules of their own for each head, its rotation partial."""
    config = {
        "qk_layernorm": True,
        "layer_norm_eps": EPS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    }
    family = Family(("stablelm", "StableLm"), config, {})
    width = HEADS * HEAD
    other = theirs(
        family, hidden_size=width, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS
    )
    tensors = {n: p for n, p in other.named_parameters() if "layernorm" not in n}
    for which in "qk":
        norms = other.get_submodule(f"{which}_layernorm").norms
        tensors[f"{which}_norm.weight"] = torch.stack([norm.weight for norm in norms])
    ours = MultiHead(
        kind="multi_head",
        d_model=width,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        norm=NoNorm(kind="none", width=width),
        bias=False,
        qk_norm=layer_norm(),
        qk_norm_scope="per_head",
    ).build()
    ours.load_state_dict(tensors)
    check_agreement(family, ours, other, HEAD // 2)
