"""What holds for each mixer of tokens with a state, beside the recurrence of its paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

import zoo
from references.attention_cases import made, randn
from zoo.cache import Cache
from zoo.reports.flops import flops
from zoo.showing.show import summary_data
from zoo.slots import Attention

Described = TypeVar("Described", bound=Attention)
Recurrence = Callable[[Described, dict[str, torch.Tensor], torch.Tensor], torch.Tensor]
"""Token by token, for the tensors of a module and one sequence (length, width)."""


def check_recurrence(description: Described, recurrent: Recurrence[Described], length: int) -> None:
    """All tokens at once, and token by token with a cache."""
    module, x = made(description), randn(2, length, description.d_model)
    tensors = dict(module.named_parameters())
    expected = torch.stack([recurrent(description, tensors, row) for row in x])
    cache = Cache(length).layer(0).of("self_attn")
    one_by_one = torch.cat([module(one, cache=cache)[0] for one in x.split(1, 1)], 1)
    for found in (module(x)[0], one_by_one):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert description.layout().n_parameters == sum(p.numel() for p in tensors.values())


def check_hidden_token(module: nn.Module, width: int) -> None:
    """It is neither read nor does the state fade; to a convolution it is a zero, so that of one
    token alone must be all that the module has."""
    x = randn(2, 6, width)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 1]]).bool()
    found, _ = module(x, mask=mask[:, None, None])
    for row in range(2):
        alone, _ = module(x[row : row + 1, mask[row]])
        torch.testing.assert_close(found[row, mask[row]], alone[0], rtol=0, atol=1e-12)


def check_shown(small: dict[str, Any], *, own: int, state: int, products: int) -> None:
    """What is shown of a model like `SMALL_DECODER` with such a mixer, which has `own` parameters,
    keeps `state` numbers, and computes so many products for a token, however many there are."""
    spec = zoo.read_spec({**small, "vocab": 40})
    ffn, norms = 2 * 16 * 8 + 8 + 16, 4 * 16
    assert spec.n_parameters == 2 * 40 * 16 + 3 * (own + ffn + norms) + 2 * 16
    data = summary_data(spec)
    assert data["state_bytes_per_sequence"] == 3 * state * 4
    assert data["kv_cache_bytes_per_token"]["float32"] == 0
    short, long = (flops(spec, n)["forward"] for n in (640, 1280))
    assert long == 2 * short
    (decoder, *_) = flops(spec, 640)["parts"]
    (layers,) = [part for part in decoder["parts"] if part["name"] == "layers"]
    (mixer,) = [part for part in layers["parts"] if part["name"] == "self_attn"]
    assert mixer["flops"] == 2 * 3 * 640 * products


def check_first_gradient(module: nn.Module, width: int) -> None:
    """The gradient of the first of 67 tokens of this width is what finite differences say: it goes
    through the states of several chunks."""
    x = randn(1, 67, width).requires_grad_()
    module(x)[0][0, -1, 0].backward()
    assert x.grad is not None
    direction = torch.zeros_like(x)
    direction[0, 0] = randn(width, seed=5)
    with torch.no_grad():
        ahead, behind = (module(x + s * 1e-4 * direction)[0][0, -1, 0] for s in (1, -1))
    expected = (ahead - behind) / 2e-4
    assert abs(expected) > 1e-9
    torch.testing.assert_close((x.grad * direction).sum(), expected, rtol=1e-3, atol=1e-12)
