"""Mixtures of experts against the implementations of published models in transformers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import nn

from zoo_components.moe import MixtureOfExperts, Router
from zoo_components.norm import NoNorm

D_MODEL, D_FF, SHARED = 12, 10, 7
Tensors = dict[str, torch.Tensor]


def described(router: dict[str, Any], **values: Any) -> MixtureOfExperts:
    dimensions = {"d_model": D_MODEL, "n_experts": values["n_experts"], "top_k": values["top_k"]}
    return MixtureOfExperts(
        kind="moe",
        d_model=D_MODEL,
        norm=NoNorm(kind="none", width=D_MODEL),
        d_ff=D_FF,
        router=Router(**dimensions, **router),
        **({"bias": False} | values),
    )


def build(name: str, block: str, config: str, values: dict[str, Any]) -> nn.Module:
    modeling = import_module(f"transformers.models.{name}.modeling_{name}")
    configuration = import_module(f"transformers.models.{name}.configuration_{name}")
    return getattr(modeling, block)(getattr(configuration, config)(**values))


# --- how each of them stores what: its own tensors under our names --------------------------------


def fused(t: Tensors) -> Tensors:
    """gate and up stacked as rows, (experts, 2 * d_ff, d_model)."""
    gate, up = t["experts.gate_up_proj"].chunk(2, 1)
    return {
        "experts.gate_proj.weight": gate,
        "experts.up_proj.weight": up,
        "experts.down_proj.weight": t["experts.down_proj"],
    }


def fused_columns(t: Tensors) -> Tensors:
    """Llama 4: like `fused`, but transposed."""
    return fused({name: tensor.transpose(1, 2) for name, tensor in t.items() if tensor.ndim == 3})


def interleaved(t: Tensors) -> Tensors:
    """gpt-oss: transposed, with gate and up interleaved, and the router under our names."""
    weight, bias = t["experts.gate_up_proj"].transpose(1, 2), t["experts.gate_up_proj_bias"]
    return {
        "experts.gate_proj.weight": weight[:, ::2],
        "experts.up_proj.weight": weight[:, 1::2],
        "experts.gate_proj.bias": bias[:, ::2],
        "experts.up_proj.bias": bias[:, 1::2],
        "experts.down_proj.weight": t["experts.down_proj"].transpose(1, 2),
        "experts.down_proj.bias": t["experts.down_proj_bias"],
        "router.weight": t["router.weight"],
        "router.bias": t["router.bias"],
    }


def flattened(t: Tensors) -> Tensors:
    """DBRX: all experts' rows in one matrix, the last map transposed."""
    names = {"w1": "gate", "v1": "up", "w2": "down"}
    found = {
        f"experts.{ours}_proj.weight": t[f"experts.mlp.{theirs}"].unflatten(0, (-1, D_FF))
        for theirs, ours in names.items()
    }
    down = "experts.down_proj.weight"
    return found | {down: found[down].transpose(1, 2)}


def apart(t: Tensors) -> Tensors:
    """Switch Transformers: separate tensors for each expert."""
    count = sum(name.endswith("wi.weight") for name in t)
    return {
        f"experts.{ours}_proj.weight": torch.stack(
            [t[f"experts.expert_{e}.{theirs}.weight"] for e in range(count)]
        )
        for theirs, ours in {"wi": "up", "wo": "down"}.items()
    }


def shared(t: Tensors, name: str) -> Tensors:
    maps = ("gate_proj", "up_proj", "down_proj")
    return {f"shared.{m}.weight": t[f"{name}.{m}.weight"] for m in maps}


def corrected(t: Tensors) -> Tensors:
    """Shared experts too, and a router whose choice is corrected (DeepSeek-V3 and others)."""
    router = {
        "router.weight": t["gate.weight"],
        "router.correction_bias": t["gate.e_score_correction_bias"],
    }
    return fused(t) | shared(t, "shared_experts") | router


Mapping = Callable[[Tensors], Tensors]
Case = tuple[str, str, str, dict[str, Any], MixtureOfExperts, Mapping]
SIX = {"n_experts": 6, "top_k": 2}
EIGHT = {"n_experts": 8, "top_k": 3}
# What configurations of several models state alike.
LOCAL = {
    "hidden_size": D_MODEL,
    "intermediate_size": D_FF,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
WITH_SHARED = {
    "hidden_size": D_MODEL,
    "moe_intermediate_size": D_FF,
    "shared_expert_intermediate_size": SHARED,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
GROUPED = {
    "hidden_size": D_MODEL,
    "moe_intermediate_size": D_FF,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
}

CASES: list[Case] = [
    (
        "mixtral",
        "MixtralSparseMoeBlock",
        "MixtralConfig",
        LOCAL,
        described({"normalize": True}, **SIX),
        lambda t: fused(t) | {"router.weight": t["gate.weight"]},
    ),
    (
        "qwen2_moe",
        "Qwen2MoeSparseMoeBlock",
        "Qwen2MoeConfig",
        WITH_SHARED | {"norm_topk_prob": False},
        described({}, **SIX, shared_d_ff=SHARED, shared_gate=True),
        lambda t: (
            fused(t)
            | shared(t, "shared_expert")
            | {
                "router.weight": t["gate.weight"],
                "shared_gate.weight": t["shared_expert_gate.weight"],
            }
        ),
    ),
    (
        "deepseek_v2",
        "DeepseekV2Moe",
        "DeepseekV2Config",
        GROUPED
        | {
            "num_attention_heads": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
        },
        described({"n_groups": 4, "top_groups": 2, "scale": 1.5}, **EIGHT, shared_d_ff=2 * D_FF),
        lambda t: fused(t) | shared(t, "shared_experts") | {"router.weight": t["gate.weight"]},
    ),
    (
        "deepseek_v3",
        "DeepseekV3MoE",
        "DeepseekV3Config",
        GROUPED | {"routed_scaling_factor": 1.5, "norm_topk_prob": True},
        described(
            {
                "score": "sigmoid",
                "correction_bias": True,
                "n_groups": 4,
                "top_groups": 2,
                "group_score": "top2",
                "normalize": True,
                "normalize_eps": 1e-20,
                "scale": 1.5,
            },
            **EIGHT,
            shared_d_ff=2 * D_FF,
        ),
        corrected,
    ),
    (
        "gpt_oss",
        "GptOssMLP",
        "GptOssConfig",
        LOCAL | {"swiglu_limit": 1.5},
        described(
            {"score": "topk_softmax", "bias": True},
            **SIX,
            expert="clamped_glu",
            activation="gelu_quick",
            limit=1.5,
            bias=True,
        ),
        interleaved,
    ),
    (
        "gpt_oss",
        "GptOssMLP",
        "GptOssConfig",
        LOCAL | {"swiglu_alpha": 0.8},
        described(
            {"score": "topk_softmax", "bias": True},
            **SIX,
            expert="clamped_glu",
            activation="swish",
            beta=0.8,
            bias=True,
        ),
        interleaved,
    ),
    (
        "phimoe",
        "PhimoeSparseMoeBlock",
        "PhimoeConfig",
        LOCAL | {"router_jitter_noise": 0.2},
        described({"score": "sparsemixer", "threshold": 0.2}, **SIX),
        lambda t: fused(t) | {"router.weight": t["router.weight"]},
    ),
    (
        "llama4",
        "Llama4TextMoe",
        "Llama4TextConfig",
        LOCAL,
        described({"score": "sigmoid"}, **SIX, weighted="inputs", shared_d_ff=D_FF),
        lambda t: (
            fused_columns(t) | shared(t, "shared_expert") | {"router.weight": t["router.weight"]}
        ),
    ),
    (
        "dbrx",
        "DbrxFFN",
        "DbrxConfig",
        {
            "d_model": D_MODEL,
            "n_heads": 2,
            "ffn_config": {
                "hidden_size": D_MODEL,
                "ffn_hidden_size": D_FF,
                "moe_num_experts": 6,
                "moe_top_k": 2,
                "moe_normalize_expert_weights": 2.0,
            },
        },
        described({"normalize": True, "normalize_order": 2.0}, **SIX),
        lambda t: flattened(t) | {"router.weight": t["router.layer.weight"]},
    ),
    (
        "ernie4_5_moe",
        "Ernie4_5_MoeSparseMoeBlock",
        "Ernie4_5_MoeConfig",
        {
            "hidden_size": D_MODEL,
            "moe_intermediate_size": D_FF,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_norm_min": 0.7,
            "use_bias": False,
        },
        described(
            {"correction_bias": True, "normalize": True, "normalize_min": 0.7},
            **SIX,
            shared_d_ff=2 * D_FF,
        ),
        lambda t: (
            fused(t)
            | shared(t, "shared_experts")
            | {
                "router.weight": t["gate.weight"],
                "router.correction_bias": t["gate.moe_statics.e_score_correction_bias"][0],
            }
        ),
    ),
    (
        "cohere2_moe",
        "Cohere2MoeSparseMoeBlock",
        "Cohere2MoeConfig",
        {
            "hidden_size": D_MODEL,
            "intermediate_size": D_FF,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "average",
        },
        described({"score": "topk_softmax"}, **SIX, shared_d_ff=D_FF, shared_average=True),
        lambda t: fused(t) | shared(t, "shared_experts") | {"router.weight": t["gate.weight"]},
    ),
    (
        "laguna",
        "LagunaSparseMoeBlock",
        "LagunaConfig",
        WITH_SHARED
        | {
            "moe_router_logit_softcapping": 1.5,
            "moe_routed_scaling_factor": 2.0,
        },
        described(
            {
                "score": "sigmoid",
                "softcap": 1.5,
                "correction_bias": True,
                "normalize": True,
                "scale": 2.0,
            },
            **SIX,
            shared_d_ff=SHARED,
        ),
        corrected,
    ),
    (
        "kolibri1",
        "Kolibri1SparseMoeBlock",
        "Kolibri1Config",
        WITH_SHARED | {"norm_topk_prob": False},
        described({"score": "topk_sigmoid", "correction_bias": True}, **SIX, shared_d_ff=SHARED),
        corrected,
    ),
    (
        "switch_transformers",
        "SwitchTransformersSparseMLP",
        "SwitchTransformersConfig",
        {
            "d_model": D_MODEL,
            "d_ff": D_FF,
            "num_experts": 6,
            "expert_capacity": 100,
            "dropout_rate": 0.0,
        },
        described({}, n_experts=6, top_k=1, expert="mlp", activation="relu"),
        lambda t: apart(t) | {"router.weight": t["router.classifier.weight"]},
    ),
]


@pytest.mark.parametrize(
    ("name", "block", "config", "values", "moe", "mapping"),
    CASES,
    ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)],
)
def test_output_and_gradient_are_those_of_the_published_model(
    name: str,
    block: str,
    config: str,
    values: dict[str, Any],
    moe: MixtureOfExperts,
    mapping: Mapping,
) -> None:
    theirs = randomize(build(name, block, config, values).eval(), 0.7)
    ours = moe.build().eval()
    ours.load_state_dict(mapping(dict(theirs.state_dict())))

    x = torch.randn(3, 20, D_MODEL)
    weights = torch.randn(3, 20, D_MODEL)
    found = []
    for module in (ours, theirs):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        y = (y[0] if isinstance(y, tuple) else y).view_as(x)
        (gradient,) = torch.autograd.grad((y * weights).sum(), inputs)
        found.append((y, gradient))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)
