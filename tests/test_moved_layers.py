"""Layers that have changed places and modules that were swapped for others are noticed when a model
is saved, though the tensors are alike."""

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


def as_refused(model: zoo.Transformer, folder: Path) -> str:
    with pytest.raises(zoo.WeightsError, match="the modules of m are not those") as caught:
        zoo.save(model, folder / "refused")
    assert not (folder / "refused").exists()
    return str(caught.value)


@pytest.mark.parametrize("loaded", [False, True])
def test_another_activation_is_not_saved(loaded: bool, tmp_path: Path) -> None:
    model = zoo.build(SPEC)
    zoo.save(model, tmp_path)
    model = copy.deepcopy(zoo.load(tmp_path) if loaded else model)
    ffn = model.get_submodule("decoder.layers.1.ffn")
    before, ffn.activation = ffn.activation, nn.Tanh()
    told = as_refused(model, tmp_path)
    assert "`decoder.layers.1.ffn.activation` is Tanh, and was built as ReLU" in told
    ffn.activation = before
    zoo.save(model, tmp_path)


def test_added_and_removed_modules_are_told(tmp_path: Path) -> None:
    model = zoo.build({**SPEC, "position": "sinusoidal"})
    layer = model.get_submodule("decoder.layers.2")
    layer.self_attn.add_module("drop", nn.Dropout(0.1))
    model.get_submodule("decoder.embed").positions = None
    told = as_refused(model, tmp_path)
    assert "`decoder.layers.2.self_attn.drop` is Dropout, and was built as NoneType" in told
    assert "`decoder.embed.positions` is NoneType, and was built as SinusoidalPositions" in told


def test_a_subclass_may_stand_for_its_base(tmp_path: Path) -> None:
    class Watched(nn.ReLU):
        pass

    model = zoo.build(SPEC)
    model.get_submodule("decoder.layers.0.ffn").activation = Watched()
    zoo.save(model, tmp_path)
