"""`differential` against a reference for one query, one pair of heads and one key at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references import attention as reference
from references.attention_cases import (
    LENGTH,
    check_equal,
    described_differential,
    layer_norm,
    made,
    randn,
    rms,
    some_mask,
)

import zoo
from zoo.errors import SpecError
from zoo_components.norm import NoNorm

FEATURES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "shared keys": {"n_heads": 8, "n_kv_heads": 4},
    "one pair of keys": {"n_heads": 6, "n_kv_heads": 2},
    "some biases": {"bias": ("q", "v")},
    "no bias": {"bias": ()},
    "lambda_init": {"lambda_init": 0.2},
    "lambda_init of 0": {"lambda_init": 0.0},
    "eps": {"head_norm": rms(8)},
    "layer norm": {"head_norm": layer_norm(8)},
    "no norm": {"head_norm": NoNorm(kind="none", width=8)},
    "scale": {"scale": 1.3},
    "wide heads": {"head_dim": 10},
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_feature(fields: dict[str, Any], causal: bool) -> None:
    description = described_differential(**fields)
    x = randn(2, LENGTH, 6)
    turned = description.head_dim == 4
    check_equal(description, reference.differential, [x], turned=turned, causal=causal)
    mask = some_mask(2, description.n_heads, LENGTH, LENGTH)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    check_equal(description, reference.differential, [x], causal=causal, mask=mask, bias=bias)


def test_memory() -> None:
    description = described_differential(key_width=4, n_kv_heads=2)
    mask = some_mask(2, 1, LENGTH, 7)
    inputs = [randn(2, LENGTH, 6), randn(2, 7, 4, seed=8)]
    check_equal(description, reference.differential, inputs, mask=mask)


def test_weights_are_of_both_heads_of_a_pair() -> None:
    module, x = made(described_differential()), randn(2, LENGTH, 6)
    fused, none = module(x, causal=True)
    explicit, weights = module(x, causal=True, return_weights=True)
    assert none is None
    torch.testing.assert_close(fused, explicit, rtol=0, atol=1e-14)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, LENGTH).double())
    assert not weights.triu(1).any()


@pytest.mark.parametrize("return_weights", [False, True])
def test_both_halves_of_a_value_lose_the_same_keys(return_weights: bool) -> None:
    """With dropout in training, too, the output is that of the weights that are returned."""
    plain = {"head_norm": NoNorm(kind="none", width=8), "lambda_init": 0.0}
    module = made(described_differential(dropout=0.5, bias=(), **plain)).train()
    with torch.no_grad():
        module.v_proj.weight.copy_(torch.ones(16, 6))  # all numbers of a value are equal
        module.o_proj.weight.copy_(torch.eye(16)[:6])  # those of the first pair are seen
    torch.manual_seed(0)
    y, _ = module(randn(2, LENGTH, 6), return_weights=return_weights)
    first_half, second_half = y[..., :4], y[..., 4:]
    torch.testing.assert_close(second_half, first_half[..., :2])


def test_the_factor_is_rounded_once() -> None:
    """It is computed in float32 in a model of half precision."""
    module = made(described_differential(head_dim=64, lambda_init=0.3), torch.bfloat16)
    random = torch.Generator().manual_seed(0)
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    for _ in range(8):
        vectors = {name: torch.randn(64, generator=random).mul(0.1).bfloat16() for name in names}
        module.load_state_dict(vectors, strict=False)
        q1, k1, q2, k2 = (vectors[name].double() for name in names)
        exact = math.exp(q1 @ k1) - math.exp(q2 @ k2) + 0.3
        assert module._factor(torch.bfloat16) == torch.tensor(exact).bfloat16()


def test_what_is_drawn_and_what_is_kept() -> None:
    """The roles by which inits go, and the sizes of the caches of a token."""
    layout = described_differential(n_kv_heads=2).layout()
    roles = {name: (t.role, t.fan_in, t.fan_out) for name, t in layout.tensors()}
    assert roles["o_proj.weight"][0] == "residual"
    assert {roles[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")} == {("weight", 4, 1)}
    assert (layout.cache, layout.memory_cache) == (2 * 4 + 2 * 4, 0)
    crossing = described_differential(n_kv_heads=2, key_width=9).layout()
    assert (crossing.cache, crossing.memory_cache) == (0, 2 * 4 + 2 * 4)


SPEC = """
format = 1
name = "small"
builder = "decoder"
vocab = 11
n_layers = 3
d_model = 16
n_heads = 4
d_ff = 8
position = "rotary"
attention = { kind = "differential", lambda_init = { per_layer = [0.2, 0.36, 0.47] } }
"""


def test_in_a_model() -> None:
    """Each layer has its own constant, the full form is equivalent, and all weights learn."""
    spec = zoo.read_spec(SPEC)
    assert zoo.read_spec(spec.to_toml()).digest == spec.digest
    model = zoo.build(spec)
    layers = model.decoder.layers
    assert [layer.self_attn.lambda_init for layer in layers] == [0.2, 0.36, 0.47]
    ids = torch.arange(10).reshape(2, 5)
    logits, maps = model(ids, return_attention=True)
    torch.testing.assert_close(model(ids), logits)
    assert [weights.shape for weights in maps.decoder] == [(2, 4, 5, 5)] * 3
    logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in layers.parameters())


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("n_heads = 1", "heads work in pairs: n_heads is even, not 1"),
        ("n_heads = 4\nn_kv_heads = 1", "heads work in pairs: n_kv_heads is even, not 1"),
        ("n_heads = 8\nn_kv_heads = 6", "not divisible by n_kv_heads = 6"),
        ("n_heads = 6", "d_model = 16 is not divisible by n_heads = 6"),
    ],
)
def test_heads_that_make_no_pairs(key: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC.replace("n_heads = 4", key))
