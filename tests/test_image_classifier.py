"""Heads that classify images, against one image at a time."""

from __future__ import annotations

import pytest
import torch
from references.heads import D_MODEL, N_CLASSES, built, linear, same, states
from torch import Tensor

import zoo
from zoo_components.image_classifier import DistilledClassifier, PatchClassifier

MASKS: dict[str, Tensor | None] = {
    "none": None,
    "right": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool(),
    "left": torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool(),
    "broadcast": torch.tensor([[1, 1, 0, 1, 0]]).bool(),
}


def mean(vectors: Tensor, there: Tensor | None) -> Tensor:
    """The mean of those (length, n) that are there, or 0 without any."""
    kept = list(vectors if there is None else vectors[there])
    return sum(kept, torch.zeros_like(vectors[0])) / max(1, len(kept))


def seen(mask: str, image: int) -> Tensor | None:
    there = MASKS[mask]
    return None if there is None else there[min(image, len(there) - 1)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_two_classifiers(mask: str, bias: bool) -> None:
    kind = "distilled_classifier"
    module = built(DistilledClassifier(kind=kind, d_model=D_MODEL, n_classes=N_CLASSES, bias=bias))
    x, w = states(3, 5), module.state_dict(keep_vars=True)
    expected = []
    for number, image in enumerate(x):
        both = [linear(w, "out", image[0]), linear(w, "distillation", image[1])]
        there = seen(mask, number)
        expected.append(mean(torch.stack(both), None if there is None else there[:2]))
    same(module(x, mask=MASKS[mask]), torch.stack(expected), module, x)


@pytest.mark.parametrize("n_registers", [0, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_class_token_beside_the_mean_of_patches(mask: str, n_registers: int) -> None:
    description = PatchClassifier(
        kind="patch_classifier", d_model=D_MODEL, n_classes=N_CLASSES, n_registers=n_registers
    )
    module, x = built(description), states(3, 5)
    w, first = module.state_dict(keep_vars=True), 1 + n_registers
    expected = []
    for number, image in enumerate(x):
        there = seen(mask, number)
        patches = mean(image[first:], None if there is None else there[first:])
        expected.append(linear(w, "out", torch.cat([image[0], patches])))
    same(module(x, mask=MASKS[mask]), torch.stack(expected), module, x)


def test_too_few_positions() -> None:
    sizes = {"d_model": D_MODEL, "n_classes": N_CLASSES}
    two = built(DistilledClassifier(kind="distilled_classifier", **sizes))
    with pytest.raises(ValueError, match="two positions, and there is only one"):
        two(states(2, 1))
    patches = built(PatchClassifier(kind="patch_classifier", n_registers=3, **sizes))
    with pytest.raises(ValueError, match="from 4 on, and there are only 4"):
        patches(states(2, 4))


def test_registers_are_stated_once() -> None:
    spec = zoo.read_spec(
        """
        format = 1
        name = "m"
        builder = "encoder"
        n_layers = 1
        d_model = 8
        n_heads = 2
        d_ff = 8
        n_registers = 3
        embedding = { kind = "patches", image_size = 6, patch_size = 2 }
        position = { kind = "learned", max_length = 10 }
        head = { kind = "patch_classifier", n_classes = 5 }
        """
    )
    assert spec.tensors["encoder.embed.registers"].shape == (3, 8)
    model = zoo.build(spec)
    assert model.head.first_patch == 4
    assert model(torch.rand(2, 3, 6, 6)).shape == (2, 5)
