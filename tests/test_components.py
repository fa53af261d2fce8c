"""Every registered component inside a small model: its description matches what it builds, and
training, evaluation and evaluation without gradients compute the same."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo.registry import read_layers, shipped_registry

REGISTRY = read_layers([shipped_registry()])

ENCODER_DECODER = {"builder": "encoder_decoder", "source_vocab": 11, "target_vocab": 11}
ENCODER = {"builder": "encoder", "vocab": 11}
IMAGES = {"kind": "patches", "image_size": 6, "patch_size": 2}
STRETCHED = {"factor": 4.0, "original_length": 4}

# The keys that a component needs in addition to the common sizes: its own keys, and others.
SHARED_KV: dict[str, Any] = {
    "q_lora_rank": 6,
    "nope_head_dim": 4,
    "rope_head_dim": 4,
    "window": 3,
    "o_groups": 2,
    "o_lora_rank": 5,
}
NEEDS: dict[str, dict[str, Any]] = {
    "block.channel_scaled": {"channel_scale": 0.3},
    "attention.latent": {
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
    },
    "attention.sparse_latent": {
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
        "index_n_heads": 3,
        "index_head_dim": 5,
        "index_topk": 2,
    },
    "attention.shared_sparse_latent": {
        "kv_lora_rank": 6,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
    },
    "attention.shared_kv": SHARED_KV,
    "attention.heavily_compressed": {**SHARED_KV, "compress_rate": 2},
    "attention.compressed_sparse": {
        **SHARED_KV,
        "compress_rate": 2,
        "index_n_heads": 3,
        "index_head_dim": 5,
        "index_topk": 2,
    },
    "ffn.moe": {"n_experts": 4, "top_k": 2},
    "ffn.normed_moe": {"n_experts": 4, "top_k": 2},
    "ffn.hash_moe": {"n_experts": 4, "top_k": 2},
    "ffn.residual_stack": {"expansion_factor": 1.5},
    "position.learned": {"max_length": 9},
    "position.rotary_linear": {"factor": 4.0},
    "position.rotary_dynamic": STRETCHED,
    "position.rotary_yarn": STRETCHED,
    "position.rotary_llama3": STRETCHED,
    "position.rotary_longrope": {
        **STRETCHED,
        "short_factors": [1.0, 1.5, 2.0, 2.5],
        "long_factors": [1.0, 2.0, 4.0, 8.0],
    },
    "embedding.layered_tokens": {"d_layer_input": 4},
    "embedding.partly_layered_tokens": {"d_layer_input": 4, "layer_vocab": 5},
    "ffn.sparse_glu": {"sparsity": 0.5},
    "ffn.adapted_glu": {"adapter_rank": 2},
    "attention.adapted_multi_head": {"adapter_rank": 2},
    "embedding.conv_frontend": {"n_features": 5},
    "embedding.conv2d_frontend": {"n_features": 5},
    "embedding.projected_vectors": {"n_features": 5},
    "embedding.patches": {"image_size": 6, "patch_size": 2},
    "embedding.spectrogram_patches": {
        "n_features": 5,
        "n_frames": 7,
        "patch_size": 3,
        "feature_stride": 2,
        "frame_stride": 3,
    },
    "embedding.normed_patches": {"image_size": 6, "patch_size": 2},
    "embedding.prenormed_patches": {"image_size": 6, "patch_size": 2},
    "builder.deepstack_image_text_decoder": {"deep_layers": [1]},
    "builder.bidirectional_image_text_decoder": {"decoder": {"self_attn": {"window": 4}}},
    "builder.tiled_image_text_decoder": {"grids": [[1, 2], [2, 1]]},
    "head.token_classifier": {"n_classes": 3},
    "head.classifier": {"n_classes": 3},
    "head.distilled_classifier": {"n_classes": 3},
    "head.patch_classifier": {"n_classes": 3},
    "head.projected_classifier": {"n_classes": 3},
    "head.two_map_embedding": {"d_hidden": 6, "d_out": 5},
    "embedding.patch_vectors": {"patch_size": 2},
    "embedding.normed_patch_vectors": {"patch_size": 2},
    "embedding.grid_patch_vectors": {"patch_size": 2, "grid_size": 3},
    "embedding.resized_grid_patch_vectors": {"patch_size": 2, "grid_size": 3},
    "embedding.factorized_patch_vectors": {"patch_size": 2, "max_patches": 9},
    "attention.tiled": {"tile": 3},
    "attention.gmlp": {"max_length": 9},
    "position.rotary_multimodal": {"sections": [1, 1, 2]},
    "position.rotary_multimodal_interleaved": {"sections": [2, 1, 1]},
}
OF_ANY_SIZE = {f"{name}_image_text_decoder" for name in ("native", "deepstack", "bidirectional")}
"""The builders of texts with images of any size."""
OF_ONE_SIZE = {f"{name}image_text_decoder" for name in ("", "glu_", "adapted_")}
"""Those of texts with images of one size, without tiles."""
BESIDE: dict[str, dict[str, Any]] = {
    "block.layer_input": {"embedding": {"kind": "layered_tokens", "d_layer_input": 4}},
    "block.alternating_layer_input": {"embedding": {"kind": "layered_tokens", "d_layer_input": 4}},
    "embedding.layered_tokens": {"block": "layer_input"},
    "embedding.partly_layered_tokens": {"block": "layer_input"},
    "position.rotary_grid": {"embedding": IMAGES},
    "position.sinusoidal_grid": {"embedding": IMAGES},
    "position.rotary_class_grid": {"embedding": IMAGES},
    "position.rotary_counted_grid": {"embedding": IMAGES},
    "position.learned_patches": {"embedding": IMAGES},
    "position.grid_bias": {"embedding": IMAGES},
    "attention.disentangled": {"position": "disentangled"},
    "attention.gated_bias": {"position": "t5_buckets"},
    "attention.relative": {},
    "attention.sparse_latent": {},
    "attention.relative_keys": {},
    "attention.rotated_input": {"position": "rotary"},
    "attention.tiled": {},
    "attention.fourier": {},
    "attention.gmlp": {},
    "position.disentangled": {"attention": "disentangled"},
}
WITHOUT_HEADS = (
    "attention.none",
    "attention.fourier",
    "attention.gmlp",
    "attention.short_convolution",
    "attention.mamba",
    "attention.time_mixing",
    "attention.channel_mixing",
)
WITHOUT_D_FF = ("ffn.residual_stack", "ffn.none", "ffn.gated_conv1d")
RECURRENT = {
    f"attention.{kind}"
    for kind in (
        "short_convolution",
        "forgetting",
        "multi_dconv_head",
        "gated_delta",
        "kimi_delta",
        "lightning",
        "mamba",
        "multi_head_mamba",
        "mamba2",
        "mamba2_scaled",
        "mlstm",
        "time_mixing",
        "channel_mixing",
        "rg_lru",
        "parallel_hybrid",
        "shared_kv",
        "heavily_compressed",
        "compressed_sparse",
    )
} | {"block.two_mixers", "block.guided_mixer"}
"""What has no place in an encoder, nor attends to one."""


def spec_with(slot: str, kind: str) -> dict[str, Any]:
    """Return a small spec of two layers with this component."""
    name = f"{slot}.{kind}"
    sizes = {"format": 1, "name": name, "n_layers": 2, "d_model": 16}
    own = {"n_heads": 2} if name not in WITHOUT_HEADS else {}
    own |= {"d_ff": 24} if name not in WITHOUT_D_FF else {}
    if name == "builder.dual_encoder":
        images = {"embedding": IMAGES, "position": {"kind": "learned", "max_length": 10}}
        return sizes | own | {"builder": kind, "text_vocab": 11, "image": images}
    if name.endswith("image_text_decoder") and kind not in OF_ANY_SIZE:
        images = {"embedding": IMAGES, "position": {"kind": "learned", "max_length": 10}}
        text = {"builder": kind, "vocab": 11, "image_id": 9, "image": images}
        return sizes | own | text | NEEDS.get(name, {})
    if kind in OF_ANY_SIZE:
        images = {"embedding": {"kind": "patch_vectors", "patch_size": 2}}
        text = {"builder": kind, "vocab": 11, "image_id": 9, "image": images}
        return sizes | own | text | NEEDS.get(name, {})
    if name == "builder.sound_text_decoder":
        sounds = {"embedding": {"kind": "conv_frontend", "n_features": 5}}
        text = {"builder": kind, "vocab": 11, "sound_id": 9, "sound": sounds}
        return sizes | own | text
    if slot == "builder":
        host = ENCODER_DECODER if kind == "encoder_decoder" else {"builder": kind, "vocab": 11}
        return sizes | own | host
    if name == "attention.cross_layer":  # the first layer has keys and values for it
        layers = {"layers": [{"last": 1, "self_attn": kind}]}
        return sizes | own | {"builder": "decoder", "vocab": 11, "decoder": layers}
    if name == "attention.shared_sparse_latent":  # the first layer chooses keys for it
        first = {"kind": "sparse_latent", **NEEDS["attention.sparse_latent"]}
        last = {"last": 1, "self_attn": {"kind": kind, **NEEDS[name]}}
        stack = {"self_attn": first, "layers": [last]}
        return sizes | own | {"builder": "decoder", "vocab": 11, "decoder": stack}
    alone = slot in ("embedding", "head") or name in BESIDE
    host = ENCODER if alone or name == "attention.none" else ENCODER_DECODER
    if name in RECURRENT:
        host = {"builder": "decoder", "vocab": 11}
    return sizes | own | host | {slot: {"kind": kind} | NEEDS.get(name, {})} | BESIDE.get(name, {})


COMPONENTS = {
    f"{slot}.{kind}": spec_with(slot, kind)
    for slot, kinds in REGISTRY.plugins.items()
    for kind in kinds
}
# Choices in a component that decide which tensors it has.
CHOICES: dict[str, dict[str, Any]] = {
    "no biases": ENCODER_DECODER | {"bias": False, "norm": {"kind": "layer_norm", "bias": False}},
    "tied three ways": ENCODER_DECODER
    | {"share_embeddings": True, "head": {"kind": "linear", "tied": True, "bias": True}},
    "shared layers": ENCODER | {"encoder": {"share_layers": True}},
    "factorised and typed": ENCODER
    | {"embedding": {"kind": "tokens", "d_embed": 6, "n_types": 2, "norm": "layer_norm"}},
    "tied to a factor": ENCODER
    | {
        "embedding": {"kind": "tokens", "d_embed": 6},
        "head": {"kind": "mlm", "tied": True, "d_hidden": 6},
    },
    "narrower states": ENCODER | {"encoder": {"output_width": 10}},
    "pooler and next sentence": ENCODER | {"pooler": "pooler", "nsp": True},
    "an external memory": {"builder": "decoder", "vocab": 11, "memory_width": 7},
    "stored bias": ENCODER | {"head": {"kind": "linear", "logits_bias": True}},
    "scaled layers": ENCODER | {"block": {"kind": "residual", "layer_scale": "learned"}},
    "every second layer": ENCODER
    | {"encoder": {"layers": [{"every": 2, "ffn": {"kind": "glu", "d_ff": 8}}]}},
}
CHOSEN = {
    name: {"format": 1, "name": "chosen", "n_layers": 2, "d_model": 16, "n_heads": 2, "d_ff": 24}
    | choice
    for name, choice in CHOICES.items()
}
SPECS = COMPONENTS | CHOSEN


@pytest.mark.parametrize("name", SPECS)
def test_layout_is_what_is_built(name: str) -> None:
    spec = zoo.read_spec(SPECS[name], registry=REGISTRY)
    model = zoo.build(spec, device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in spec.layout.tensors()} == shapes
    buffers = {name for name, _ in model.named_buffers()} & shapes.keys()
    assert {name for name, tensor in spec.layout.tensors() if tensor.buffer} == buffers
    assert spec.n_parameters == sum(parameter.numel() for parameter in model.parameters())


FIRST: dict[str, dict[str, float]] = {
    # Rates of decay and steps begin at 0.05: log(0.05), or what softplus maps to it.
    "attention.gated_delta": {"rate_bias": -2.970628},
    "attention.mamba": {"step_bias": -2.970628, "skip": 1.0},
    "attention.mamba2": {"step_bias": -2.970628, "skip": 1.0},
    "attention.time_mixing": {
        **dict.fromkeys(("k_mix", "v_mix", "gate_mix"), 0.5),
        "log_rate": -2.995732,
        "bonus": -1.203973,  # log(0.3)
    },
    "attention.channel_mixing": {"up_mix": 0.5, "gate_mix": 0.5},
    "attention.mlstm": {"in_gate.bias": -10.0, "forget_gate.bias": 4.5, "inner_norm.weight": 1.0},
    "attention.gated_bias": {"gate_scale": 1.0},
    "attention.gmlp": {"spatial_bias": 1.0},
}
"""What vectors of an attention begin with, where it is not 0."""


@pytest.mark.parametrize("name", FIRST)
def test_what_vectors_begin_with(name: str) -> None:
    spec = zoo.read_spec(SPECS[name], registry=REGISTRY)
    expected = FIRST[name]
    for stack in ("encoder", "decoder"):
        attention = f"{stack}.layers.0.self_attn."
        first = {
            key.removeprefix(attention): tensor.value
            for key, tensor in spec.layout.tensors()
            if key.startswith(attention) and tensor.role == "constant" and tensor.value
        }
        if first:
            own = {key: first[key] for key in first if key in expected or "norm" not in key}
            assert own == pytest.approx(expected, abs=1e-6)
            return
    raise AssertionError("no attention of this kind")


def inputs(spec: dict[str, Any]) -> list[Tensor]:
    kind = spec.get("embedding", {}).get("kind", "tokens")
    if kind == "vectors":
        return [torch.rand(2, 7, 16, dtype=torch.float64)]
    if kind in ("conv_frontend", "conv2d_frontend", "projected_vectors", "spectrogram_patches"):
        return [torch.rand(2, 7, 5, dtype=torch.float64)]
    if kind.endswith("patch_vectors"):
        return [torch.rand(2, 7, 12, dtype=torch.float64)]
    if kind in ("waveform", "waveform_stem"):
        return [torch.rand(2, 1300, 1, dtype=torch.float64)]
    if kind in ("patches", "normed_patches", "prenormed_patches"):
        return [torch.rand(2, 3, 6, 6, dtype=torch.float64)]
    if spec["builder"] == "dual_encoder":
        return [torch.rand(2, 3, 6, 6, dtype=torch.float64), torch.randint(11, (2, 5))]
    if spec["builder"] in OF_ONE_SIZE:
        text = torch.tensor([[3, *[9] * 9, 5], [*[9] * 9, 7, 1]])
        return [text, torch.rand(2, 3, 6, 6, dtype=torch.float64)]
    if spec["builder"] == "tiled_image_text_decoder":
        text = torch.tensor([[3, *[9] * 10, 5], [*[9] * 10, 7, 1]])
        return [text, torch.rand(2, 3, 6, 6, dtype=torch.float64)]
    if spec["builder"] in OF_ANY_SIZE:
        text = torch.tensor([[3, *[9] * 6, 5], [*[9] * 6, 7, 1]])
        return [text, torch.rand(2, 3, 6, 4, dtype=torch.float64)]
    if spec["builder"] == "sound_text_decoder":
        text = torch.tensor([[3, *[9] * 4, 5], [*[9] * 4, 7, 1]])
        return [text, torch.rand(2, 7, 5, dtype=torch.float64)]
    source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
    if "memory_width" in spec:
        return [target, torch.rand(2, 4, 7, dtype=torch.float64)]
    return [source, target] if spec["builder"] == "encoder_decoder" else [source]


@pytest.mark.parametrize("name", SPECS)
def test_training_and_evaluation_compute_the_same(name: str) -> None:
    model = zoo.build(SPECS[name], registry=REGISTRY, dtype=torch.float64)
    torch.manual_seed(0)
    given = inputs(SPECS[name])
    trained = model.train()(*given)
    evaluated = model.eval()(*given)
    with torch.no_grad():
        bare = model(*given)
    assert evaluated.isfinite().all()
    assert (bare - evaluated).abs().max() <= 1e-12
    if any(
        isinstance(module, nn.BatchNorm1d) for module in model.modules()
    ):  # by definition, its evaluation does not depend on the batch
        assert (trained - evaluated).abs().max() > 1e-3
    else:
        assert (trained - evaluated).abs().max() <= 1e-12


def test_descriptions_import_no_torch() -> None:
    modules = {
        entry.target.partition(":")[0]
        for kinds in REGISTRY.plugins.values()
        for entry in kinds.values()
    }
    code = f"import sys, {', '.join(sorted(modules))}\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
