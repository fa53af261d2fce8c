"""What holds for each block that does more than to add its branches to the states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from random_values import randomize
from torch import Tensor

import zoo
from zoo.transformer import Transformer

VOCAB, WIDTH, N_LAYERS, LENGTH = 11, 6, 3, 7
SMALL: dict[str, Any] = {
    "format": 1,
    "name": "blocks",
    "builder": "decoder",
    "vocab": VOCAB,
    "n_layers": N_LAYERS,
    "d_model": WIDTH,
    "n_heads": 2,
    "d_ff": 10,
    "norm": {"kind": "rms_norm", "eps": 1e-6},
    "bias": False,
    "position": "none",
    "pad_id": 0,
    "head": "none",
}
Tensors = Mapping[str, Tensor]


def built(spec: dict[str, Any]) -> Transformer:
    """A model in float64 and evaluation mode, whose tensors are all random."""
    return randomize(zoo.build(spec, dtype=torch.float64).eval(), seed=1)


def some_ids(seed: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (2, LENGTH), generator=random)


# --- in plain PyTorch -----------------------------------------------------------------------------


def rms(weight: Tensor | float, x: Tensor, eps: float = 1e-6) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def attention(t: Tensors, p: str, x: Tensor) -> Tensor:
    q, k, v = (
        (x @ t[f"{p}{n}_proj.weight"].T).unflatten(-1, (2, -1)).transpose(1, 2) for n in "qkv"
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    return mixed @ t[p + "o_proj.weight"].T


def network(t: Tensors, p: str, x: Tensor) -> Tensor:
    return (x @ t[p + "up_proj.weight"].T).relu() @ t[p + "down_proj.weight"].T


# --- what holds -----------------------------------------------------------------------------------


def check_formula(model: Transformer, formula: Callable[[Tensors, Tensor], Tensor]) -> None:
    """The states and the gradients of all parameters are those of a formula of tensors and ids."""
    ids, t = some_ids(), dict(model.decoder.named_parameters())
    found, right = model(ids), formula(t, ids)
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-11)
    weights = torch.randn(right.shape, dtype=torch.float64)
    for name, one, other in zip(
        t,
        torch.autograd.grad((found * weights).sum(), list(t.values())),
        torch.autograd.grad((right * weights).sum(), list(t.values())),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=name)


def check_padding(model: Transformer, side: str) -> None:
    """Without gradients, what is computed of each token by itself leaves padding out."""
    ids, at = some_ids(), torch.arange(LENGTH)
    real = slice(3, None) if side == "left" else slice(LENGTH - 3)
    ids[0] = ids[0].where(torch.isin(at, at[real]), 0)
    with torch.no_grad():
        found, alone = model(ids), model(ids[:1, real])
    torch.testing.assert_close(found[0, real], alone[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], model(ids[1:])[0], rtol=0, atol=1e-12)


def check_cache(model: Transformer) -> None:
    """With a cache, and without, a model with a head generates the same."""
    prompts = [[3, 4, 5, 6], [7, 8]]
    cached, anew = (
        zoo.generate(model, prompts, max_new_tokens=6, cache=cache) for cache in (True, False)
    )
    assert [one.ids for one in cached] == [one.ids for one in anew]
    for one, other in zip(cached, anew, strict=True):
        assert abs(one.score - other.score) < 1e-10
