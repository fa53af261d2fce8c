"""What holds for each mixer of tokens with a state, beside the recurrence of its paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from references.attention_cases import made, randn
from zoo.cache import Cache
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
