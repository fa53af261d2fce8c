"""Dropout, the position of cross-attention, and the branches of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from zoo.errors import PluginError
from zoo.slots import FeedForward
from zoo_components.modules.block import with_norms

RATE = 0.4
Branch = Callable[[Tensor], Tensor]


def layer(**keys: Any) -> nn.Module:
    """Return a decoder of a single layer, with norms other than ones and zeros."""
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
    """With one seed, the same elements of the outputs of attention, cross-attention and
    feed-forward network are set to zero, in that order."""
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


SCALES: dict[str, Any] = {
    "format": 1,
    "name": "scales",
    "builder": "decoder",
    "vocab": 11,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 12,
    "n_layers": 1,
}


def test_each_branch_has_its_own_scales() -> None:
    """The sums of a layer, from what its branches returned and the scales stated for each."""
    model = zoo.build(
        SCALES
        | {
            "attention": {"kind": "multi_head", "residual_scale": 0.3, "skip_scale": 1.7},
            "ffn": {"kind": "mlp", "residual_scale": 0.6, "skip_scale": 0.9},
        },
        dtype=torch.float64,
    ).eval()
    layer = model.decoder.layers[0]
    seen: dict[str, torch.Tensor] = {}
    layer.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    layer.self_attn.register_forward_hook(lambda _, __, out: seen.update(attention=out[0]))
    layer.ffn.register_forward_hook(lambda _, __, out: seen.update(ffn=out))
    layer.register_forward_hook(lambda _, __, out: seen.update(y=out[0]))
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    middle = 1.7 * seen["x"] + 0.3 * seen["attention"]
    torch.testing.assert_close(seen["y"], 0.9 * middle + 0.6 * seen["ffn"], rtol=0, atol=1e-14)


def test_a_parallel_layer_has_one_skip_scale() -> None:
    parallel = {"norm_placement": "parallel", "ffn": {"kind": "mlp", "skip_scale": 0.5}}
    with pytest.raises(zoo.SpecError, match="one sum"):
        zoo.read_spec(SCALES | parallel)


class OwnNorm(FeedForward):
    """A network with a norm of its own."""

    def build(self) -> nn.Module:
        module = nn.Linear(self.d_model, self.d_model)
        module.post_norm = nn.LayerNorm(self.d_model)
        return module


def test_the_names_of_norms_are_taken() -> None:
    """A norm that the branch itself calls `post_norm` would be replaced."""
    with pytest.raises(PluginError, match="'own' has a `post_norm` of its own"):
        with_norms(OwnNorm(kind="own", d_model=4, norm_placement="pre", norms=(), norm=None))
