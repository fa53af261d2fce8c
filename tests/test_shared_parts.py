"""Layers that share the weights of some of their parts, adapters of shared parts, and the layer
whose mixer is guided by an attention to states and embeddings, against plain statements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import zoo
from zoo.errors import SpecError

SPEC: dict[str, Any] = {
    "format": 1,
    "name": "tiny",
    "builder": "decoder",
    "vocab": 20,
    "n_layers": 4,
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 24,
    "norm": "rms_norm",
    "position": "none",
}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])


def test_parts_are_one_and_the_rest_is_each_layers_own() -> None:
    sharing = {"share_layers": [0, 1, 0, 1], "share_parts": ["self_attn"]}
    model = zoo.build(SPEC | {"decoder": sharing})
    one, other, again, _ = model.decoder.layers
    assert one.self_attn.q_proj.weight is again.self_attn.q_proj.weight
    assert one.self_attn.pre_norm.weight is again.self_attn.pre_norm.weight
    assert one.self_attn.q_proj.weight is not other.self_attn.q_proj.weight
    assert one.ffn.up_proj.weight is not again.ffn.up_proj.weight
    alone = zoo.build(SPEC)
    attention = sum(p.numel() for p in alone.decoder.layers[0].self_attn.parameters())
    assert model.spec.n_parameters == alone.spec.n_parameters - 2 * attention
    assert model.spec.n_parameters == sum(p.numel() for p in model.parameters())


def test_a_layer_rule_may_differ_in_what_is_not_shared() -> None:
    sharing = {"share_layers": True, "share_parts": ["self_attn"]}
    rules = {"layers": [{"at": [2], "d_ff": 8, "block": {"self_attn": {"window": 3}}}]}
    model = zoo.build(SPEC | {"decoder": sharing | rules})
    first, *_, last = model.decoder.layers
    assert first.self_attn.o_proj.weight is last.self_attn.o_proj.weight


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"share_parts": ["ffn"]}, "changes nothing beside `share_layers = false`"),
        ({"share_layers": True, "share_parts": ["fnn"]}, "share the weights of `fnn`, and have no"),
        (
            {"share_layers": True, "share_parts": ["ffn"], "layers": [{"at": [1], "d_ff": 8}]},
            "layers 0 and 1 share the weights of `ffn`, whose tensors are not the same in both",
        ),
    ],
)
def test_what_cannot_be_shared(decoder: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        zoo.read_spec(SPEC | {"decoder": decoder})


GUIDED = SPEC | {
    "n_layers": 2,
    "block": {
        "kind": "guided_mixer",
        "self_attn": {"kind": "adapted_multi_head", "adapter_rank": 3, "bias": False},
        "ffn": {"kind": "adapted_glu", "adapter_rank": 5, "bias": False},
        "mixer": {"kind": "mamba2", "n_heads": 4},
    },
    "decoder": {"share_layers": True, "share_parts": ["self_attn", "ffn"]},
}


def rms(x: torch.Tensor, norm: Any) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def guided(layer: Any, x: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    """x + mixer(norm(x + out(ffn(norm(attention(norm([x; e])))))), in plain PyTorch."""
    attn, ffn, mixer = layer.self_attn, layer.ffn, layer.mixer
    y = rms(torch.cat([x, embedded], -1), attn.pre_norm)
    q, k, v = (
        y @ getattr(attn, f"{n}_proj").weight.T
        + y
        @ getattr(attn, f"{n}_adapter").down_proj.weight.T
        @ getattr(attn, f"{n}_adapter").up_proj.weight.T
        for n in "qkv"
    )
    heads = (one.unflatten(-1, (2, 16)).transpose(1, 2) for one in (q, k, v))
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
    y = rms(mixed.transpose(1, 2).flatten(-2) @ attn.o_proj.weight.T, ffn.pre_norm)
    low = y @ ffn.adapter.down_proj.weight.T
    gate = y @ ffn.gate_proj.weight.T + low @ ffn.adapter.gate_proj.weight.T
    up = y @ ffn.up_proj.weight.T + low @ ffn.adapter.up_proj.weight.T
    y = (F.silu(gate) * up) @ ffn.down_proj.weight.T @ layer.out_proj.weight.T
    return x + mixer(rms(x + y, mixer.pre_norm))[0]


@torch.no_grad()
def test_a_guided_mixer() -> None:
    model = zoo.build(GUIDED).double().eval()
    embedded = x = model.decoder.embed(IDS, torch.arange(IDS.shape[1]))
    for layer in model.decoder.layers:
        x = guided(layer, x, embedded)
    expected = model.head(rms(x, model.decoder.norm))
    torch.testing.assert_close(model(IDS), expected, rtol=0, atol=1e-12)


def test_adapters_of_shared_parts_are_each_layers_own() -> None:
    first, last = zoo.build(GUIDED).decoder.layers
    assert first.self_attn.q_proj.weight is last.self_attn.q_proj.weight
    assert first.ffn.down_proj.weight is last.ffn.down_proj.weight
    for name in (
        "self_attn.q_adapter.up_proj",
        "ffn.adapter.down_proj",
        "out_proj",
        "mixer.o_proj",
    ):
        assert first.get_submodule(name).weight is not last.get_submodule(name).weight


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"self_attn": {"kind": "none"}}, "without an attention the layer is the block `residual`"),
        ({"mixer": "none"}, "without a mixer the layer leaves its states as they are"),
        (
            {"mixer": {"kind": "multi_head"}},
            "`multi_head` cannot be the mixer, which knows neither",
        ),
        ({"ffn": {"kind": "glu", "norms": ["out"]}}, "`ffn` cannot have the norm `out` here"),
        (
            {"self_attn": {"kind": "multi_head", "d_out": 32}},
            "`self_attn` is 32 wide at its output",
        ),
    ],
)
def test_guides_that_do_not_fit(block: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        zoo.read_spec(SPEC | {"block": {"kind": "guided_mixer", "mixer": "mamba2"} | block})


@torch.no_grad()
def test_heads_of_mamba_are_mambas_of_their_channels() -> None:
    """Each head reads its own channels as `mamba` does, with its own steps, B and C."""
    one = {"kind": "mamba", "state_size": 4, "step_rank": 3, "d_inner": 12}
    two = {**one, "kind": "multi_head_mamba", "d_inner": 24, "n_heads": 2}
    spec = {k: v for k, v in SPEC.items() if k not in ("d_ff", "n_heads")}
    spec |= {"n_layers": 1, "ffn": "none"}
    whole = zoo.build(spec | {"attention": two}).double().eval().decoder.layers[0].self_attn
    x = torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    summed = torch.zeros_like(x)
    for head in range(2):
        part = zoo.build(spec | {"attention": one}).double().eval().decoder.layers[0].self_attn
        own = slice(12 * head, 12 * head + 12)
        for name, tensor in part.named_parameters():
            of_all = whole.get_parameter(name)
            if name.startswith("o_proj"):
                tensor.copy_(of_all[:, own])
            elif name.startswith(("gate", "v_")):
                tensor.copy_(of_all[own])
            else:
                tensor.copy_(of_all[head])
        summed += part(x)[0]
    torch.testing.assert_close(whole(x)[0], summed, rtol=0, atol=1e-12)
