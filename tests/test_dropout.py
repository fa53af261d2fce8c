"""Dropout is not called outside training, unless hooks or an own `forward` need the call."""

from __future__ import annotations

import torch
from torch import nn

from zoo_components.modules.dropout import Dropout


def test_outside_of_training_it_is_the_input_itself() -> None:
    dropout, x = Dropout(0.5).eval(), torch.ones(1000)
    assert dropout(x) is x
    with torch.no_grad():
        assert dropout(x) is x


def test_in_training_it_is_that_of_torch() -> None:
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(0)
    found = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(found, nn.functional.dropout(x, 0.5))
    assert set(found.tolist()) == {0.0, 2.0}


@torch.no_grad()
def test_in_training_without_gradients_it_drops_too() -> None:
    """As for a mean over many passes (Gal and Ghahramani 2015)."""
    torch.manual_seed(0)
    assert set(Dropout(0.5)(torch.ones(1000)).tolist()) == {0.0, 2.0}


@torch.no_grad()
def test_hooks_are_called_outside_of_training() -> None:
    dropout, x = Dropout(0.5).eval(), torch.ones(3)
    before = dropout.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    assert dropout(x).tolist() == [2.0] * 3
    before.remove()
    dropout.register_forward_hook(lambda module, inputs, output: output * 3)
    assert dropout(x).tolist() == [3.0] * 3


@torch.no_grad()
def test_a_forward_of_its_own_is_called() -> None:
    dropout, x = Dropout(0.5).eval(), torch.ones(3)
    dropout.forward = lambda x: x * 5
    assert dropout(x).tolist() == [5.0] * 3


def test_hooks_of_gradients_are_called_outside_of_training() -> None:
    dropout, x = Dropout(0.5).eval(), torch.ones(3, requires_grad=True)
    dropout.register_full_backward_hook(lambda module, inputs, outputs: (outputs[0] * 2,))
    dropout(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
