"""Inputs of single layers, by a reference in plain PyTorch: the per-layer embeddings of Gemma 3n
and 4."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path

import pytest
import torch.nn.functional as F
from references.blocks import (
    LENGTH,
    N_LAYERS,
    SMALL,
    VOCAB,
    WIDTH,
    Tensors,
    attention,
    built,
    check_cache,
    check_formula,
    check_padding,
    network,
    rms,
    some_ids,
)
from torch import Tensor

import zoo
from zoo.errors import SpecError
from zoo.testing import check_plugin

D_INPUT = 4
SPEC = SMALL | {
    "embedding": {"kind": "layered_tokens", "d_layer_input": D_INPUT, "scale": 1.5},
    "block": {
        "kind": "layer_input",
        "layer_scale": "learned",
        "layer_input": {"activation": "silu", "norms": ["post"]},
    },
}


def of_layer(t: Tensors, ids: Tensor, x: Tensor, layer: int) -> Tensor:
    """The input of one layer: its columns of the table, and its rows of the map."""
    own = slice(layer * D_INPUT, (layer + 1) * D_INPUT)
    of_ids = t["embed.layer_inputs.tokens.weight"][ids][..., own] * D_INPUT**0.5
    of_states = x @ t["embed.layer_inputs.proj.weight"][own].T / WIDTH**0.5
    return (rms(t["embed.layer_inputs.norm.weight"], of_states) + of_ids) / 2**0.5


def expected(t: Tensors, ids: Tensor, *, modules: list[int]) -> Tensor:
    """The states for ids, of layers that have the weights of these numbers."""
    first = x = 1.5 * t["embed.tokens.weight"][ids]
    for layer, number in enumerate(modules):
        p = f"layers.{number}."
        x = x + attention(t, p + "self_attn.", rms(t[p + "self_attn.pre_norm.weight"], x))
        x = x + network(t, p + "ffn.", rms(t[p + "ffn.pre_norm.weight"], x))
        gate = F.silu(x @ t[p + "layer_input.gate_proj.weight"].T)
        added = (gate * of_layer(t, ids, first, layer)) @ t[p + "layer_input.out_proj.weight"].T
        x = (x + rms(t[p + "layer_input.post_norm.weight"], added)) * t[p + "scalar"]
    return rms(t["norm.weight"], x)


@pytest.mark.parametrize(
    ("shared", "modules"), [(False, [0, 1, 2]), ([0, 1, 0], [0, 1, 0])], ids=["own", "shared"]
)
def test_states_and_gradients_are_those_of_the_formula(
    shared: bool | list[int], modules: list[int]
) -> None:
    """Layers that share their weights still have inputs of their own."""
    model = built(SPEC | {"decoder": {"share_layers": shared}})
    check_formula(model, partial(expected, modules=modules))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_is_left_out_changes_nothing(side: str) -> None:
    check_padding(built(SPEC), side)


def test_a_cache_changes_nothing() -> None:
    check_cache(built(SPEC | {"head": "linear"}))


def test_single_layers_may_read_none() -> None:
    rules = [{"at": [1], "block": {"kind": "residual"}}]
    model, ids = built(SPEC | {"decoder": {"layers": rules}}), some_ids()
    names = {name.split(".")[2] for name in model.spec.tensors if ".layer_input." in name}
    assert names == {"0", "2"}
    table = model.get_parameter("decoder.embed.layer_inputs.tokens.weight")
    model(ids).square().sum().backward()
    assert table.grad is not None
    read = table.grad.unflatten(-1, (N_LAYERS, D_INPUT)).abs().amax((0, 2)) > 0
    assert read.tolist() == [True, False, True]


def test_the_number_of_parameters() -> None:
    """A table and a map with a part for each layer, one norm for all parts; and two maps and a norm
    in each layer."""
    tensors = zoo.read_spec(SPEC).tensors.items()
    of_embedding, of_layers = (
        sum(prod(tensor.shape) for name, tensor in tensors if part in name)
        for part in (".layer_inputs.", ".layer_input.")
    )
    assert of_embedding == (VOCAB + WIDTH) * N_LAYERS * D_INPUT + D_INPUT
    assert of_layers == N_LAYERS * (2 * WIDTH * D_INPUT + WIDTH)


def test_what_the_inputs_cost_is_told_of_the_embedding() -> None:
    """One map of each token, beside the layers."""
    (decoder,) = zoo.flops(SPEC, LENGTH)["parts"]
    parts = {part["name"]: part["flops"] for part in decoder["parts"]}
    assert parts["embed"] == 2 * LENGTH * WIDTH * N_LAYERS * D_INPUT
    assert sum(parts.values()) == decoder["flops"]


def test_one_without_the_other_is_refused() -> None:
    with pytest.raises(SpecError, match="makes an input for each layer, and no layer reads"):
        zoo.read_spec(SPEC | {"block": "residual"})
    with pytest.raises(SpecError, match="reads an input of its own, and the embedding makes none"):
        zoo.read_spec(SPEC | {"embedding": "tokens"})


DEAF = '''
from zoo_components.block import Residual


class Deaf(Residual):
    """The layer `residual`, which does not read what it says."""

    @property
    def takes_layer_input(self) -> bool:
        return True
'''
WIDE = '''
from zoo_components.layer_inputs import LayeredTokens


class Wide(LayeredTokens):
    """The embedding `layered_tokens`, of another width than it says."""

    @property
    def layer_input_width(self) -> int:
        return 2 * self.d_layer_input
'''


@pytest.mark.parametrize(
    ("slot", "kind", "file", "told"),
    [
        ("block", "deaf", DEAF, "`context.layer_input` changes nothing"),
        ("embedding", "wide", WIDE, "`layer_inputs` must be (2, 6, 2, 8), not (2, 6, 2, 4)"),
    ],
)
def test_the_check_of_plugins_tells_what_does_not_hold(
    slot: str, kind: str, file: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / f"{kind}.py").write_text(file)
    registry = tmp_path / "registry.toml"
    registry.write_text(f'format = 1\n[{slot}]\n{kind} = "{kind}.py:{kind.title()}"\n')
    with pytest.raises(AssertionError) as failed:
        check_plugin(slot, kind, registry=registry)
    assert told in str(failed.value)
