"""The layer of the Conformer and its convolution (Gulati et al. 2020, arXiv:2005.08100)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from zoo.errors import SpecError

WIDTH, LENGTH = 6, 7
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "conformer",
    "builder": "encoder",
    "n_layers": 2,
    "d_model": WIDTH,
    "n_heads": 2,
    "d_ff": 10,
    "block": "conformer",
    "embedding": "vectors",
    "position": "none",
    "head": "none",
    "encoder": {"final_norm": False},
}
Tensors = Mapping[str, Tensor]


def built(**conv: Any) -> nn.Module:
    """A model in float64 and evaluation mode, whose tensors are all random, those of batch norms
    that are not learned too."""
    block = {"kind": "conformer", "conv": {"kind": "gated_conv1d", **conv}}
    model = zoo.build(SPEC | {"block": block}, dtype=torch.float64).eval()
    random = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.5 * torch.randn(tensor.shape, generator=random, dtype=torch.float64)
            tensor.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise)
    return model


def norm(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"])


def mapped(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def fed(t: Tensors, name: str, x: Tensor) -> Tensor:
    inner = mapped(t, f"{name}.up_proj", norm(t, f"{name}.pre_norm", x))
    return mapped(t, f"{name}.down_proj", inner.relu())


def attended(t: Tensors, x: Tensor) -> Tensor:
    x = norm(t, "self_attn.pre_norm", x)
    q, k, v = (
        mapped(t, f"self_attn.{p}_proj", x).unflatten(-1, (2, -1)).transpose(1, 2) for p in "qkv"
    )
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mapped(t, "self_attn.o_proj", mixed.transpose(1, 2).flatten(-2))


def convolved(t: Tensors, x: Tensor, before: int) -> Tensor:
    """Each output is the sum of the vectors that the kernel covers, of which `before` are before
    it, each with its weights."""
    x = norm(t, "conv.pre_norm", x)
    gated = mapped(t, "conv.up_proj", x) * mapped(t, "conv.gate_proj", x).sigmoid()
    weight = t["conv.conv.weight"][:, 0]
    rows = []
    for i in range(x.shape[1]):
        row = t.get("conv.conv.bias", torch.zeros(())).expand(len(x), WIDTH)
        for tap in range(weight.shape[1]):
            if 0 <= (j := i + tap - before) < x.shape[1]:
                row = row + weight[:, tap] * gated[:, j]
        rows.append(row)
    mean, variance, scale, shift = (
        t[f"conv.conv_norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
    )
    normed = (torch.stack(rows, 1) - mean) / (variance + 1e-5).sqrt() * scale + shift
    return mapped(t, "conv.down_proj", F.silu(normed))


def layer(t: Tensors, x: Tensor, before: int) -> Tensor:
    """Equation 1 of Gulati et al. (2020)."""
    x = x + fed(t, "first_ffn", x) / 2
    x = x + attended(t, x)
    x = x + convolved(t, x, before)
    return norm(t, "norm", x + fed(t, "ffn", x) / 2)


@pytest.mark.parametrize(
    ("conv", "before"),
    [
        ({"kernel_size": 3}, 1),
        ({"kernel_size": 4}, 2),
        ({"kernel_size": 4, "sides": "past"}, 3),
        ({"kernel_size": 31, "bias": False}, 15),
    ],
)
def test_the_formula(conv: dict[str, Any], before: int) -> None:
    model, x = built(**conv), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    found, expected = model(x), x
    for one in model.encoder.layers:
        expected = layer(one.state_dict(), expected, before)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked_tokens", ["zeroed", "kept"])
def test_what_the_convolution_reads_of_padding(masked_tokens: str) -> None:
    model = built(kernel_size=3, masked_tokens=masked_tokens)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    mask = torch.arange(LENGTH).expand(2, -1) < 5
    found, alone = model(x, source_mask=mask)[:, :5], model(x[:, :5])
    assert torch.allclose(found, alone, rtol=0, atol=1e-12) is (masked_tokens == "zeroed")


def test_a_causal_stack_has_a_causal_convolution() -> None:
    """By default, no vector depends on later ones."""
    model = zoo.build(SPEC | {"encoder": {"causal": True}}, dtype=torch.float64).eval()
    assert model.spec.model.encoder.block.conv.sides == "past"
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(model(x)[:, :4], model(x[:, :4]), rtol=0, atol=1e-12)


def test_its_branches_are_not_parallel() -> None:
    with pytest.raises(SpecError, match="run one after the other"):
        zoo.read_spec(SPEC | {"norm_placement": "parallel"})


def test_both_feed_forward_networks_are_of_the_kind_of_ffn() -> None:
    block = zoo.read_spec(SPEC | {"ffn": "glu"}).model.encoder.block
    assert (block.first_ffn.kind, block.ffn.kind, block.conv.kind) == ("glu", "glu", "gated_conv1d")
