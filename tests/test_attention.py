"""`multi_head` against a reference for one query, one head and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import attention as reference
from references.attention_cases import (
    HEAD,
    LENGTH,
    check_equal,
    counting,
    described,
    layer_norm,
    made,
    randn,
    rms,
    rotation,
    some_mask,
)
from torch import Tensor

from zoo_components.modules.scores import Scoring, attend
from zoo_components.norm import NoNorm


def stated(*arguments: Any, **keywords: Any) -> Tensor:
    return reference.multi_head(*arguments, **keywords)[0]


FEATURES: dict[str, dict[str, Any]] = {
    "multi-head": {"n_kv_heads": 4},
    "grouped-query": {},
    "multi-query": {"n_kv_heads": 1},
    "one head": {"n_heads": 1, "n_kv_heads": 1},
    "own widths": {"head_dim": 2, "v_head_dim": 5, "d_out": 7},
    "no bias": {"bias": False},
    "some biases": {"bias": ("q", "o")},
    "no output projection": {"output_projection": False, "d_out": 16},
    "scale": {"scale": 1.7},
    "clip": {"clip": 0.3},
    "qk_norm head": {"qk_norm": rms()},
    "qk_norm head after": {"qk_norm": layer_norm(), "qk_norm_site": "after_rotation"},
    "qk_norm full": {"qk_norm": layer_norm(), "qk_norm_scope": "full"},
    "qk_norm full after": {
        "qk_norm": rms(),
        "qk_norm_scope": "full",
        "qk_norm_site": "after_rotation",
    },
    "qk_norm per_head": {"qk_norm": rms(), "qk_norm_scope": "per_head"},
    "qk_norm per_head after": {
        "qk_norm": layer_norm(),
        "qk_norm_scope": "per_head",
        "qk_norm_site": "after_rotation",
    },
    "v_norm": {"v_head_dim": 5, "v_norm": rms(5)},
    "values are keys": {"values": "keys", "qk_norm": rms(), "v_norm": layer_norm(), "clip": 0.5},
    "rotated values": {"rotate_values": True},
    "v_scale": {"v_scale": 0.7},
    "sub_norm": {"sub_norm": rms()},
    "softcap": {"softcap": 0.4},
    "sinks": {"sinks": True},
    "window 1": {"window": 1},
    "window 3": {"window": 3},
    "window beyond": {"window": 99},
    "window both 1": {"window": 1, "window_sides": "both"},
    "window both 2": {"window": 2, "window_sides": "both"},
    "chunk 1": {"chunk": 1},
    "chunk 2": {"chunk": 2},
    "log temperature": {"q_temperature": "log", "q_temperature_floor": 2, "q_temperature_shift": 1},
    "power temperature": {"q_temperature": "power", "q_temperature_floor": 1.5},
    "gate": {"output_gate": "sigmoid", "v_head_dim": 5},
    "gate bias": {"output_gate": "sigmoid", "output_gate_bias": "projection"},
    "gate head bias": {"output_gate": "sigmoid", "output_gate_bias": "head"},
    "gate per head": {"output_gate": "softplus", "output_gate_scope": "head"},
    "gate per head, biases": {
        "output_gate": "softplus",
        "output_gate_scope": "head",
        "output_gate_bias": "projection",
    },
    "uniform masked rows": {"masked_rows": "uniform"},
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_feature(fields: dict[str, Any], causal: bool) -> None:
    description = described(**fields)
    x = randn(2, LENGTH, 6)
    check_equal(description, stated, [x], causal=causal, turned=True)
    mask = some_mask(2, description.n_heads, LENGTH, LENGTH)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    check_equal(description, stated, [x], causal=causal, mask=mask, bias=bias)


def test_each_feature_counts() -> None:
    """No two features compute the same."""
    x, outputs = randn(2, LENGTH, 6), {}
    for name, fields in FEATURES.items():
        if name not in ("window beyond", "own widths", "no output projection", "one head"):
            module, mask = made(described(**fields)), torch.ones(LENGTH, LENGTH).bool()
            mask[2] = False
            outputs[name] = module(x, rotation=rotation(torch.arange(LENGTH)), mask=mask)[0]
    names = list(outputs)
    for i, a in enumerate(names):
        for b in names[:i]:
            assert (outputs[a] - outputs[b]).abs().max() > 1e-6, f"{a} = {b}"


OPTIONS: dict[str, list[Any]] = {
    "n_kv_heads": [1, 2, 4],
    "v_head_dim": [HEAD, 6],
    "bias": [True, False],
    "qk_norm": [NoNorm(kind="none", width=HEAD), rms(), layer_norm()],
    "qk_norm_scope": ["head", "full", "per_head"],
    "qk_norm_site": ["before_rotation", "after_rotation"],
    "q_temperature": ["none", "log", "power"],
    "q_temperature_floor": [1.0, 3.0],
    "clip": ["none", 0.5],
    "softcap": ["none", 0.8],
    "window": ["none", 1, 2, 4],
    "window_sides": ["past", "both"],
    "sinks": [False, True],
    "v_scale": [1.0, 0.5],
    "output_gate": ["none", "sigmoid", "softplus"],
    "output_gate_scope": ["element", "head"],
    "output_gate_bias": ["none", "projection", "head"],
    "sub_norm": [NoNorm(kind="none", width=HEAD), rms()],
    "rotate_values": [False, True],
}
COMBINATIONS = st.fixed_dictionaries({name: st.sampled_from(OPTIONS[name]) for name in OPTIONS})


@settings(max_examples=40)
@given(COMBINATIONS, st.integers(0, 99), st.booleans(), st.booleans(), st.booleans())
def test_features_together(
    fields: dict[str, Any], seed: int, causal: bool, masked: bool, biased: bool
) -> None:
    mask = some_mask(2, 1, LENGTH, LENGTH, seed=seed) if masked else None
    bias = randn(4, LENGTH, LENGTH, seed=seed) if biased else None
    check_equal(
        described(**counting(fields)),
        stated,
        [randn(2, LENGTH, 6, seed=seed)],
        turned=True,
        positions=[2, 3, 4, 7, 8],
        causal=causal,
        mask=mask,
        bias=bias,
    )


MEMORY_FEATURES = ["grouped-query", "qk_norm full", "qk_norm per_head", "softcap", "sinks", "gate"]


@pytest.mark.parametrize("name", MEMORY_FEATURES)
def test_memory(name: str) -> None:
    """Keys and values come from a memory of its own width and length."""
    description = described(**FEATURES[name], key_width=3)
    memory = randn(2, 4, 3, seed=8)
    mask = some_mask(2, 1, LENGTH, 4)
    check_equal(description, stated, [randn(2, LENGTH, 6), memory], mask=mask)


def test_temperature_in_cross_attention_goes_by_the_query() -> None:
    fields = FEATURES["log temperature"]
    inputs = [randn(2, LENGTH, 6), randn(2, 4, 6, seed=8)]
    check_equal(described(**fields, key_width=6), stated, inputs, positions=[5, 6, 7, 8, 9])


@pytest.mark.parametrize("name", ["log temperature", "window 3", "chunk 2", "gate", "sinks"])
def test_each_sequence_of_a_batch_has_its_own_positions(name: str) -> None:
    module, x = made(described(**FEATURES[name])), randn(2, LENGTH, 6)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    together, weights = module(x, positions=positions, causal=True, return_weights=True)
    for row in range(2):
        alone, alone_weights = module(
            x[row], positions=positions[row], causal=True, return_weights=True
        )
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-14)
        torch.testing.assert_close(weights[row], alone_weights, rtol=0, atol=1e-14)


def test_masked_tokens_at_position_minus_one_stay_finite() -> None:
    fields = {"q_temperature": "log", "q_temperature_floor": 1, "q_temperature_shift": 0}
    module, x = made(described(**fields)), randn(1, 3, 6)
    x_out, _ = module(x, positions=torch.tensor([-1, 0, 1]))
    clamped, _ = module(x, positions=torch.tensor([0, 0, 1]))
    assert torch.equal(x_out, clamped)


@torch.no_grad()
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("return_weights", [False, True])
def test_half_precision_stays_so(name: str, return_weights: bool) -> None:
    """Also where a factor or a mask is computed in float32."""
    module, x = made(described(**FEATURES[name])), randn(2, LENGTH, 6)
    exact, _ = module(x, causal=True)
    half, weights = module.bfloat16()(x.bfloat16(), causal=True, return_weights=return_weights)
    assert half.dtype == torch.bfloat16
    assert weights is None or weights.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))


def test_grouped_heads_are_repeated_heads() -> None:
    """Grouped-query attention is multi-head attention with copies of its key-value heads."""
    grouped = described(n_heads=4, n_kv_heads=2, qk_norm=rms())
    few = made(grouped)
    many = made(described(n_heads=4, n_kv_heads=4, qk_norm=rms()))
    tensors = dict(few.named_parameters())
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        heads = tensors[name].unflatten(0, (2, HEAD))
        tensors[name] = torch.stack([heads[0], heads[0], heads[1], heads[1]]).flatten(0, 1)
    many.load_state_dict(tensors)
    x = randn(2, LENGTH, 6)
    for return_weights in (False, True):
        ours, theirs = (m(x, causal=True, return_weights=return_weights)[0] for m in (few, many))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("softcap", [None, 0.9])
@pytest.mark.parametrize("sinks", [None, torch.arange(4.0)])
@pytest.mark.parametrize("bias", [None, (1, LENGTH), (4, 1, LENGTH), (2, 1, 1, LENGTH)])
@pytest.mark.parametrize("mask", [None, (1, LENGTH), (2, 1, 1, LENGTH), (2, 4, 1, LENGTH)])
def test_a_single_query_of_grouped_heads(
    mask: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    sinks: Tensor | None,
    softcap: float | None,
) -> None:
    """It is computed without copies of keys, if all heads have the same mask and bias."""
    q, k, v = randn(2, 4, 1, HEAD), randn(2, 2, LENGTH, HEAD), randn(2, 2, LENGTH, 5)
    scoring = Scoring(0.5, softcap, uniform_masked_rows=True)
    how: dict[str, Any] = {"scoring": scoring, "training": False, "causal": True, "sinks": sinks}
    seen = None if mask is None else randn(*mask) > -0.5
    if mask is not None and mask[0] == 2:
        seen[1] = False
    how |= {"mask": seen}
    how |= {"bias": None if bias is None else randn(*bias)}
    copied = [x.repeat_interleave(2, 1) for x in (k, v)]
    for return_weights in (False, True):
        ours = attend(q, k, v, **how, return_weights=return_weights)
        theirs = attend(q, *copied, **how, return_weights=True)
        assert (ours[1] is not None) == return_weights
        for one, other in zip(ours, theirs, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_weights_are_those_of_the_statement() -> None:
    description = described(sinks=True, softcap=0.9, window=3, qk_norm=rms())
    module, x, mask = made(description), randn(2, LENGTH, 6), some_mask(2, 1, LENGTH, LENGTH)
    _, ours = module(x, mask=mask, causal=True, return_weights=True)
    tensors = dict(module.named_parameters())
    _, theirs = reference.multi_head(description, tensors, x, mask=mask, causal=True)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
