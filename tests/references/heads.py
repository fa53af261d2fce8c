"""Helpers for the tests of heads."""

from __future__ import annotations

from typing import Any

import torch
from random_values import randomize
from torch import Tensor, nn

D_MODEL, VOCAB, N_CLASSES = 6, 11, 3


def built(description: Any) -> nn.Module:
    """Build a head in float64 with random tensors, and check that it matches its layout, including
    buffers."""
    module = description.build().double()
    layout = {name: (t.shape, t.buffer) for name, t in description.layout().tensors()}
    trained = dict(module.named_parameters())
    assert layout == {n: (tuple(t.shape), n not in trained) for n, t in module.state_dict().items()}
    return randomize(module).eval()


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, D_MODEL, dtype=torch.float64, requires_grad=True)


def same(found: Tensor, expected: Tensor, module: nn.Module, x: Tensor) -> None:
    """Check values, and gradients of a random sum with respect to the states and all parameters."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    weights = torch.randn_like(expected)
    tensors = [x, *module.parameters()]
    ours, theirs = (torch.autograd.grad((y * weights).sum(), tensors) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y
