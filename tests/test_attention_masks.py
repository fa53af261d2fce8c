"""Which keys a query sees, the output for a query that sees none, and fused and explicit scores."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.attention_cases import (
    LENGTH,
    described,
    described_latent,
    layer_norm,
    made,
    randn,
    rms,
    some_mask,
)
from torch import Tensor, nn

# Rows are queries, columns are keys; x: the query sees the key.
REACHES: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "past window 1": ({"window": 1}, True, ["x....", ".x...", "..x..", "...x.", "....x"]),
    "past window 2": ({"window": 2}, True, ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
    "past window 2, not causal": (
        {"window": 2},
        False,
        ["xxxxx", "xxxxx", ".xxxx", "..xxx", "...xx"],
    ),
    "window 1 on both sides": (
        {"window": 1, "window_sides": "both"},
        False,
        ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"],
    ),
    "window 2 on both sides, causal": (
        {"window": 2, "window_sides": "both"},
        True,
        ["x....", "xx...", "xxx..", ".xxx.", "..xxx"],
    ),
    "window of the length": ({"window": 5}, True, ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
    "window one short": ({"window": 4}, True, ["x....", "xx...", "xxx..", "xxxx.", ".xxxx"]),
    "chunk 2": ({"chunk": 2}, True, ["x....", "xx...", "..x..", "..xx.", "....x"]),
    "chunk 2, not causal": ({"chunk": 2}, False, ["xx...", "xx...", "..xx.", "..xx.", "....x"]),
    "chunk 3": ({"chunk": 3}, True, ["x....", "xx...", "xxx..", "...x.", "...xx"]),
}


@pytest.mark.parametrize(("fields", "causal", "rows"), REACHES.values(), ids=REACHES)
def test_reach(fields: dict[str, Any], causal: bool, rows: list[str]) -> None:
    module, x = made(described(**fields)), randn(1, LENGTH, 6)
    _, weights = module(x, causal=causal, return_weights=True)
    seen = torch.tensor([[mark == "x" for mark in row] for row in rows])
    assert torch.equal(weights > 0, seen.expand_as(weights))


def test_chunks_are_cut_at_positions() -> None:
    """Left padding has no positions, so it moves the cuts."""
    module, x = made(described(chunk=2)), randn(1, LENGTH, 6)
    positions = torch.tensor([0, 0, 1, 2, 3])
    _, weights = module(x, causal=True, positions=positions, return_weights=True)
    rows = ["x....", "xx...", "xxx..", "...x.", "...xx"]
    seen = torch.tensor([[mark == "x" for mark in row] for row in rows])
    assert torch.equal(weights > 0, seen.expand_as(weights))


SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 0.5},
    "sinks": {"sinks": True},
    "both": {"softcap": 0.5, "sinks": True},
    "window": {"window": 2},
    "norms": {"qk_norm": rms(), "sub_norm": layer_norm(), "v_norm": rms()},
}


@pytest.mark.parametrize("fields", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("return_weights", [False, True])
def test_a_query_that_sees_nothing(
    fields: dict[str, Any], dtype: torch.dtype, biased: bool, return_weights: bool
) -> None:
    """Its output is zeros, and neither the output nor a gradient is ever NaN."""
    module = made(described(**fields, bias=("q", "k", "v")), dtype).train()
    x = randn(2, LENGTH, 6).to(dtype).requires_grad_()
    mask = some_mask(2, 1, LENGTH, LENGTH)
    bias = randn(4, LENGTH, LENGTH, seed=4).to(dtype) if biased else None
    for causal in (False, True):
        y, weights = module(x, mask=mask, causal=causal, bias=bias, return_weights=return_weights)
        assert y.isfinite().all()
        dead = y[0, 1] if "sub_norm" not in fields else torch.zeros(1)
        assert not dead.any()
        assert weights is None or not weights[0, :, 1].any()
        with torch.autograd.set_detect_anomaly(True):  # fails at any intermediate NaN
            gradients = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_batch_that_sees_nothing_at_all() -> None:
    mask = torch.zeros(1, 1, 1, LENGTH, dtype=torch.bool)
    for name in ("plain", "softcap", "sinks", "both", "window"):
        y, _ = made(described(**SCORES[name], bias=False))(randn(1, LENGTH, 6), mask=mask)
        assert not y.any()
    y, _ = made(described_latent())(randn(1, LENGTH, 6), mask=mask)
    assert not y.any()


def test_uniform_rows_average_the_values() -> None:
    """As with a mask of -1e9, under which all scores round to the same number."""
    module = made(described(masked_rows="uniform", n_kv_heads=4, output_projection=False, d_out=16))
    x, mask = randn(1, LENGTH, 6), torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    expected = module.v_proj(x).mean(1, keepdim=True).expand(1, LENGTH, 16)
    for return_weights, bias in product((False, True), (None, randn(4, LENGTH, LENGTH))):
        y, _ = module(x, mask=mask, bias=bias, return_weights=return_weights)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-14)


def test_sinks_take_their_share() -> None:
    """The weights of the keys sum to sum(exp(score)) / (sum(exp(score)) + exp(sink))."""
    module, x = made(described(sinks=True, scale=0.1)), randn(1, LENGTH, 6)
    _, weights = module(x, return_weights=True)
    with torch.no_grad():
        sinks, module.sinks[:] = module.sinks.clone(), -torch.inf
    _, without = module(x, return_weights=True)
    torch.testing.assert_close(without.sum(-1), torch.ones(1, 4, LENGTH).double())
    odds = weights.sum(-1) / (1 - weights.sum(-1)) * sinks.exp()[:, None]
    torch.testing.assert_close(weights / weights.sum(-1, keepdim=True), without)
    with torch.no_grad():
        module.sinks[:] = 0.0
    _, zero = module(x, return_weights=True)
    torch.testing.assert_close(zero.sum(-1) / (1 - zero.sum(-1)), odds)


def test_softcap_bounds_scores_and_keeps_small_ones() -> None:
    x = randn(1, LENGTH, 6)
    plain = made(described())(x, return_weights=True)[1]
    loose = made(described(softcap=1e6))(x, return_weights=True)[1]
    torch.testing.assert_close(loose, plain, rtol=1e-9, atol=0)
    tight = made(described(softcap=0.1, scale=100.0))(x, return_weights=True)[1]
    spread = tight.max(-1).values / tight.min(-1).values
    assert math.exp(0.199) < spread.max() < math.exp(0.2) + 1e-9


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(
        {
            "n_kv_heads": st.sampled_from([1, 2, 4]),
            "window": st.sampled_from(["none", 1, 3]),
            "masked_rows": st.sampled_from(["zero", "uniform"]),
            "qk_norm_scope": st.sampled_from(["head", "full", "per_head"]),
            "v_head_dim": st.sampled_from([4, 3]),
        }
    ),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_fused_and_explicit_scores_agree(
    fields: dict[str, Any], seed: int, causal: bool, masked: bool, biased: bool
) -> None:
    """Returning the weights changes no output and no gradient."""
    module, x = made(described(**fields, qk_norm=rms())), randn(2, LENGTH, 6, seed=seed)
    mask = some_mask(2, 1, LENGTH, LENGTH, seed=seed) if masked else None
    bias = randn(4, LENGTH, LENGTH, seed=seed).requires_grad_() if biased else None
    wanted = [x.requires_grad_(), *module.parameters(), *([bias] if bias is not None else [])]
    outputs: list[Tensor] = []
    gradients: list[tuple[Tensor, ...]] = []
    for return_weights in (False, True):
        y, weights = module(x, mask=mask, causal=causal, bias=bias, return_weights=return_weights)
        assert (weights is not None) == return_weights
        outputs.append(y)
        gradients.append(torch.autograd.grad((y * randn(*y.shape)).sum(), wanted))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


class Constant(nn.Module):
    """Returns the same tensor for any input."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


def with_values_of_identity(length: int, *, latent: bool) -> nn.Module:
    """A one-headed module with dropout whose output is the weights of each query."""
    identity = torch.eye(length, dtype=torch.float64)
    if latent:
        module = made(described_latent(dropout=0.5, n_heads=1, v_head_dim=length))
        module.kv_b_proj = Constant(torch.cat([randn(length, 3, seed=9), identity], -1))
        module.o_proj = nn.Identity()
        return module
    fields = {"n_heads": 1, "n_kv_heads": 1, "v_head_dim": length, "d_out": length}
    module = made(described(dropout=0.5, output_projection=False, **fields))
    module.v_proj = Constant(identity)
    return module


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("latent", [False, True])
def test_dropout(return_weights: bool, latent: bool) -> None:
    """In training a weight is 0 or doubled at dropout 0.5; otherwise nothing is dropped."""
    length = 64
    module, x = with_values_of_identity(length, latent=latent), randn(length, 6)
    weights, _ = module(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(length).double())
    torch.manual_seed(0)
    dropped, returned = module.train()(x, return_weights=return_weights)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * weights[kept])
    assert 0.45 < kept.double().mean() < 0.55
    if returned is not None:
        torch.testing.assert_close(returned[0], dropped)
