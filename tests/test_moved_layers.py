"""Layers of different descriptions that have changed places are noticed when a model is saved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo

SPEC: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "builder": "decoder",
    "vocab": 9,
    "n_layers": 3,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
    "attention": {"kind": "multi_head", "window": {"per_layer": [2, 4, 4]}},
}


def swapped(model: zoo.Transformer, one: int, other: int) -> zoo.Transformer:
    layers = model.get_submodule("decoder.layers")
    assert isinstance(layers, nn.ModuleList)
    layers[one], layers[other] = layers[other], layers[one]
    return model


@pytest.mark.parametrize("copied", [False, True])
def test_layers_with_windows_of_two_sizes(copied: bool, tmp_path: Path) -> None:
    zoo.save(zoo.build(SPEC), tmp_path)
    for model in (zoo.build(SPEC), zoo.load(tmp_path)):
        moved = swapped(copy.deepcopy(model) if copied else model, 0, 2)
        with pytest.raises(zoo.WeightsError, match=r"`decoder.layers.0` was built from another"):
            zoo.save(moved, tmp_path / "moved")
        zoo.save(swapped(moved, 0, 2), tmp_path / "as_before")


def test_equal_layers_may_change_places(tmp_path: Path) -> None:
    model = zoo.build(SPEC)
    first, second = (model.get_submodule(f"decoder.layers.{i}").state_dict() for i in (1, 2))
    zoo.save(swapped(model, 1, 2), tmp_path)
    loaded = zoo.load(tmp_path)
    for i, layer in ((1, second), (2, first)):
        found = loaded.get_submodule(f"decoder.layers.{i}").state_dict()
        torch.testing.assert_close(found, layer, rtol=0, atol=0)
