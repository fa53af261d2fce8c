"""Where a layer drops, and where its cross-attention stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import zoo

RATE = 0.4
Branch = Callable[[Tensor], Tensor]


def layer(**keys: Any) -> nn.Module:
    """A decoder that is nothing but one layer, its norms moved away from ones and zeros."""
    spec = {
        "format": 1,
        "name": "layer",
        "builder": "decoder",
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 12,
        "embedding": "vectors",
        "position": "none",
        "head": "none",
        "decoder": {"final_norm": False},
    }
    model = zoo.build(spec | keys, dtype=torch.float64)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def norm(module: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], module.weight, module.bias, 1e-5)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, RATE)


def pre(x: Tensor, f: nn.Module, run: Branch) -> Tensor:
    return x + dropped(run(norm(f.pre_norm, x)))


def post(x: Tensor, f: nn.Module, run: Branch) -> Tensor:
    return norm(f.out_norm, x + dropped(run(x)))


def sandwich(x: Tensor, f: nn.Module, run: Branch) -> Tensor:
    return x + dropped(norm(f.post_norm, run(norm(f.pre_norm, x))))


def post_branch(x: Tensor, f: nn.Module, run: Branch) -> Tensor:
    return x + dropped(norm(f.post_norm, run(x)))


@pytest.mark.parametrize("sublayer", [pre, post, sandwich, post_branch])
def test_what_a_branch_adds_is_dropped(
    sublayer: Callable[[Tensor, nn.Module, Branch], Tensor],
) -> None:
    """Random numbers of one seed zero the same elements, of attention's, of cross-attention's and
    of the network's, in that order."""
    model = layer(
        norm_placement=sublayer.__name__,
        block={"kind": "residual", "dropout": RATE},
        memory_width=6,
    )
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    memory = torch.randn(2, 3, 6, dtype=torch.float64)
    parts = model.decoder.layers[0]
    torch.manual_seed(2)
    found = model(x, memory)
    torch.manual_seed(2)
    expected = sublayer(x, parts.self_attn, lambda y: parts.self_attn(y, causal=True)[0])
    expected = sublayer(expected, parts.cross_attn, lambda y: parts.cross_attn(y, memory)[0])
    expected = sublayer(expected, parts.ffn, parts.ffn)
    assert (found - expected).abs().max() <= 1e-12
    assert (found - model.eval()(x, memory)).abs().max() > 1e-3
