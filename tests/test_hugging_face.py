"""The shipped GPT-2 and Llama specs, cut down, against the models of transformers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from random_values import add_noise
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import zoo

EXAMPLES = Path(__file__).parent.parent / "examples"
GPT2 = {"vocab": 41, "max_length": 24, "n_layers": 3, "d_model": 32, "n_heads": 4, "d_ff": 48}
LLAMA = {"vocab": 41, "n_layers": 3, "d_model": 32, "n_heads": 4, "d_ff": 48}


def small(stem: str, **sizes: Any) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / f"{stem}.toml").read_text()) | sizes


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    """The model of transformers, and its weights under the zoo's names."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=41, n_positions=24, n_embd=32, n_layer=3, n_head=4, n_inner=48)
    reference = GPT2LMHeadModel(config).eval()
    state = shaken(reference)
    weights = {
        "decoder.embed.tokens.weight": state["transformer.wte.weight"],
        "decoder.embed.positions.weight": state["transformer.wpe.weight"],
        "head.out.weight": state["lm_head.weight"],
    }
    for end in ("weight", "bias"):
        weights[f"decoder.norm.{end}"] = state[f"transformer.ln_f.{end}"]
        for i in range(3):
            ours, theirs = f"decoder.layers.{i}", f"transformer.h.{i}"
            qkv = state[f"{theirs}.attn.c_attn.{end}"].chunk(3, -1)
            maps = dict(zip(("q_proj", "k_proj", "v_proj"), qkv, strict=True))
            maps["o_proj"] = state[f"{theirs}.attn.c_proj.{end}"]
            weights |= {f"{ours}.self_attn.{name}.{end}": maps[name].t() for name in maps}
            weights |= {
                f"{ours}.self_attn.pre_norm.{end}": state[f"{theirs}.ln_1.{end}"],
                f"{ours}.ffn.pre_norm.{end}": state[f"{theirs}.ln_2.{end}"],
                f"{ours}.ffn.up_proj.{end}": state[f"{theirs}.mlp.c_fc.{end}"].t(),
                f"{ours}.ffn.down_proj.{end}": state[f"{theirs}.mlp.c_proj.{end}"].t(),
            }
    return reference, weights


LLAMA_NAMES = {
    "model.embed_tokens": "decoder.embed.tokens",
    "model.layers": "decoder.layers",
    "model.norm": "decoder.norm",
    "input_layernorm": "self_attn.pre_norm",
    "post_attention_layernorm": "ffn.pre_norm",
    "mlp.": "ffn.",
    "lm_head": "head.out",
}


def llama(n_kv_heads: int, base: float) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model of transformers, and its weights under the zoo's names."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=41,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=n_kv_heads,
        intermediate_size=48,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    reference = LlamaForCausalLM(config).eval()
    weights: dict[str, Tensor] = {}
    for name, tensor in shaken(reference).items():
        for theirs, ours in LLAMA_NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor
    return reference, weights


def shaken(reference: nn.Module) -> dict[str, Tensor]:
    """Return larger weights than the initial ones: with small weights, attention is nearly uniform
    and norms have hardly any effect."""
    return add_noise(reference, 0.2).state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_gpt2(dtype: torch.dtype, padded: bool) -> None:
    reference, weights = gpt2()
    model = zoo.build(small("gpt2", **GPT2), dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    check(model, reference.to(dtype), weights, padded, tolerance)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("stem", "sizes", "n_kv_heads", "base"),
    [
        ("llama_2_7b", LLAMA, 4, 10000.0),
        ("llama_3_8b", LLAMA | {"n_kv_heads": 2}, 2, 500000.0),
    ],
)
def test_llama(
    padded: bool, stem: str, sizes: dict[str, Any], n_kv_heads: int, base: float
) -> None:
    """In float32 only, since transformers always rotates in float32."""
    reference, weights = llama(n_kv_heads, base)
    check(zoo.build(small(stem, **sizes)), reference, weights, padded, 1e-5)


def check(
    model: nn.Module,
    reference: nn.Module,
    weights: dict[str, Tensor],
    padded: bool,
    tolerance: float,
) -> None:
    """Check that logits are equal, except at padding."""
    assert model.spec.n_parameters == sum(p.numel() for p in reference.parameters())
    model.load_state_dict(weights)
    model.eval()
    ids = torch.randint(41, (3, 20))
    mask = torch.arange(20) < torch.tensor([[20], [13], [7]]) if padded else None
    with torch.no_grad():
        expected = reference(ids, attention_mask=None if mask is None else mask.long()).logits
        found = model(ids, target_mask=mask)
    if mask is not None:
        found, expected = found[mask], expected[mask]
    assert expected.abs().max() > 1.0
    assert (found - expected).abs().max() <= tolerance
