"""Mixtures of experts with norms inside, against a reference that takes one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import Tensor, nn

import zoo
from zoo.errors import SpecError

WIDTH, D_FF, N_EXPERTS, TOP_K, SHARED = 6, 5, 4, 2, 7
FFN: dict[str, Any] = {
    "kind": "normed_moe",
    "n_experts": N_EXPERTS,
    "top_k": TOP_K,
    "d_ff": D_FF,
    "bias": False,
    "norms": ["post"],
    "router": {"normalize": True},
}
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "normed",
    "builder": "decoder",
    "vocab": 11,
    "n_layers": 1,
    "d_model": WIDTH,
    "n_heads": 2,
    "norm": {"kind": "rms_norm", "eps": 1e-6},
    "ffn": FFN,
}
Tensors = Mapping[str, Tensor]


def network(**values: Any) -> nn.Module:
    """The network of the only layer, in float64, with random tensors."""
    model = zoo.build(SPEC | {"ffn": FFN | values}, dtype=torch.float64).eval()
    return randomize(model.get_submodule("decoder.layers.0.ffn"), seed=1)


def rms(t: Tensors, name: str, x: Tensor) -> Tensor:
    return t[f"{name}.weight"] * x / ((x * x).mean() + 1e-6).sqrt()


def glu(gate: Tensor, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    inner = gate @ x
    return down @ (inner / (1 + (-inner).exp()) * (up @ x))


def expected(t: Tensors, x: Tensor, *, shared: bool) -> Tensor:
    """The output for one token, (d_model,)."""
    logits = t["router.weight"] @ rms(t, "router.norm", x) / WIDTH**0.5
    shares = logits.exp() / logits.exp().sum()
    chosen = sorted(range(N_EXPERTS), key=lambda e: -shares[e].item())[:TOP_K]
    total = sum(shares[e] for e in chosen)
    read, y = rms(t, "experts_pre_norm", x), torch.zeros_like(x)
    for e in chosen:
        maps = (t[f"experts.{p}_proj.weight"][e] for p in ("gate", "up", "down"))
        y = y + shares[e] / total * t["router.expert_scale"][e] * glu(*maps, read)
    y = rms(t, "experts_post_norm", y)
    if shared:
        maps = (t[f"shared.{p}_proj.weight"] for p in ("gate", "up", "down"))
        y = y + rms(t, "shared_post_norm", glu(*maps, rms(t, "shared_pre_norm", x)))
    return y


@pytest.mark.parametrize("values", [{}, {"shared_d_ff": SHARED}], ids=["alone", "shared"])
def test_output_and_gradients_are_those_of_the_formula(values: dict[str, Any]) -> None:
    ffn = network(**values)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    t = dict(ffn.named_parameters())
    rows = [expected(t, row, shared=bool(values)) for row in x.flatten(0, 1)]
    found, right = ffn(x), torch.stack(rows).view(x.shape)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-11)
    weights = torch.randn(x.shape, dtype=torch.float64)
    inputs = [x, *(one for name, one in t.items() if not name.startswith("post_norm"))]
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((right * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_the_number_of_parameters(shared: bool) -> None:
    """Three maps of each expert and of the shared one, that of the router, a factor of each expert,
    and norms: of the branch, the router, and around experts."""
    ffn = FFN | ({"shared_d_ff": SHARED} if shared else {})
    tensors = zoo.read_spec(SPEC | {"ffn": ffn}).tensors.items()
    found = sum(prod(t.shape) for name, t in tensors if name.startswith("decoder.layers.0.ffn."))
    experts = 3 * N_EXPERTS * D_FF * WIDTH + 3 * SHARED * WIDTH * shared
    norms = (1 + 1 + 2 + 2 * shared) * WIDTH
    assert found == experts + N_EXPERTS * WIDTH + N_EXPERTS + norms


def test_a_latent_width_is_not_a_key() -> None:
    with pytest.raises(SpecError, match="d_latent"):
        zoo.read_spec(SPEC | {"ffn": FFN | {"d_latent": 3}})
