"""Inputs of single layers, by a reference in plain PyTorch: the per-layer embeddings of Gemma 3n
and 4."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_values import randomize
from torch import Tensor

import zoo
from zoo.errors import SpecError
from zoo.testing import check_plugin

VOCAB, WIDTH, N_LAYERS, D_INPUT, LENGTH = 11, 6, 3, 4, 7
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "layered",
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
    "embedding": {"kind": "layered_tokens", "d_layer_input": D_INPUT, "scale": 1.5},
    "block": {
        "kind": "layer_input",
        "layer_scale": "learned",
        "layer_input": {"activation": "silu", "norms": ["post"]},
    },
    "head": "none",
}
Tensors = Mapping[str, Tensor]


def built(**values: Any) -> zoo.Transformer:
    """A model in float64 and evaluation mode, whose tensors are all random."""
    return randomize(zoo.build(SPEC | values, dtype=torch.float64).eval(), seed=1)


def some_ids(seed: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (2, LENGTH), generator=random)


def rms(weight: Tensor, x: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def of_layer(t: Tensors, ids: Tensor, x: Tensor, layer: int) -> Tensor:
    """The input of one layer: its columns of the table, and its rows of the map."""
    own = slice(layer * D_INPUT, (layer + 1) * D_INPUT)
    of_ids = t["embed.layer_inputs.tokens.weight"][ids][..., own] * D_INPUT**0.5
    of_states = x @ t["embed.layer_inputs.proj.weight"][own].T / WIDTH**0.5
    return (rms(t["embed.layer_inputs.norm.weight"], of_states) + of_ids) / 2**0.5


def expected(t: Tensors, ids: Tensor, modules: list[int]) -> Tensor:
    """The states for ids, of layers that have the weights of these numbers."""
    first = x = 1.5 * t["embed.tokens.weight"][ids]
    for layer, number in enumerate(modules):
        p = f"layers.{number}."
        normed = rms(t[p + "self_attn.pre_norm.weight"], x)
        q, k, v = (
            (normed @ t[f"{p}self_attn.{n}_proj.weight"].T).unflatten(-1, (2, -1)).transpose(1, 2)
            for n in "qkv"
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + mixed @ t[p + "self_attn.o_proj.weight"].T
        inner = (rms(t[p + "ffn.pre_norm.weight"], x) @ t[p + "ffn.up_proj.weight"].T).relu()
        x = x + inner @ t[p + "ffn.down_proj.weight"].T
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
    model, ids = built(decoder={"share_layers": shared}), some_ids()
    t = dict(model.decoder.named_parameters())
    found, right = model(ids), expected(t, ids, modules)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-11)
    weights = torch.randn(right.shape, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), list(t.values())),
        torch.autograd.grad((right * weights).sum(), list(t.values())),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_is_left_out_changes_nothing(side: str) -> None:
    """Without gradients, what is computed of each token by itself leaves padding out."""
    model, ids = built(), some_ids()
    real = slice(3, None) if side == "left" else slice(LENGTH - 3)
    ids[0] = ids[0].where(torch.isin(torch.arange(LENGTH), torch.arange(LENGTH)[real]), 0)
    with torch.no_grad():
        found, alone = model(ids), model(ids[:1, real])
    torch.testing.assert_close(found[0, real], alone[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1], model(ids[1:])[0], rtol=0, atol=1e-12)


def test_a_cache_changes_nothing() -> None:
    model = built(head="linear")
    prompts = [[3, 4, 5, 6], [7, 8]]
    with_cache, without = (
        zoo.generate(model, prompts, max_new_tokens=6, cache=cache) for cache in (True, False)
    )
    assert [one.ids for one in with_cache] == [one.ids for one in without]
    for one, other in zip(with_cache, without, strict=True):
        assert abs(one.score - other.score) < 1e-10


def test_single_layers_may_read_none() -> None:
    rules = [{"at": [1], "block": {"kind": "residual"}}]
    model, ids = built(decoder={"layers": rules}), some_ids()
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
