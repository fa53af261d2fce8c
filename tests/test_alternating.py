"""Streams of which a layer computes one and predicts the others, by a reference in plain PyTorch:
AltUp, LAuReL and the sparse gates of Gemma 3n."""

from __future__ import annotations

from functools import partial
from statistics import NormalDist
from typing import Any

import pytest
import torch
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

D_INPUT, TABLE, N = 4, 7, 3
PLAIN = SMALL | {"block": {"kind": "alternating_updates", "n_streams": N}}
WHOLE = SMALL | {
    "embedding": {
        "kind": "partly_layered_tokens",
        "d_layer_input": D_INPUT,
        "layer_vocab": TABLE,
    },
    "norm_placement": "sandwich",
    "block": {
        "kind": "alternating_layer_input",
        "n_streams": N,
        "laurel_rank": 2,
        "layer_input": {"activation": "silu", "norms": ["post"]},
    },
}
SPECS = {"plain": PLAIN, "with all": WHOLE}


def routed(t: Tensors, p: str, x: Tensor) -> Tensor:
    normed = rms(t[p + "router_norm.weight"], x)
    return torch.tanh(normed @ t[p + "router.weight"].T / WIDTH)


def as_large(x: Tensor, y: Tensor) -> Tensor:
    """y with the length of x."""
    return y / y.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)


def of_layer(t: Tensors, ids: Tensor, x: Tensor, layer: int) -> Tensor:
    """The input of one layer. Tokens that the table does not have are as the first one."""
    own = slice(layer * D_INPUT, (layer + 1) * D_INPUT)
    ids = torch.tensor([[id_ if id_ < TABLE else 0 for id_ in row] for row in ids.tolist()])
    of_ids = t["embed.layer_inputs.tokens.weight"][ids][..., own] * D_INPUT**0.5
    of_states = x @ t["embed.layer_inputs.proj.weight"][own].T / WIDTH**0.5
    return (rms(t["embed.layer_inputs.norm.weight"], of_states) + of_ids) / 2**0.5


def computed(t: Tensors, p: str, x: Tensor, *, whole: bool) -> Tensor:
    """What the branches make of the first stream."""
    after = rms if whole else lambda _, added: added
    normed = rms(t[p + "self_attn.pre_norm.weight"], x)
    added = attention(t, p + "self_attn.", normed)
    x = x + after(t.get(p + "self_attn.post_norm.weight"), added)
    if whole:
        low = normed @ t[p + "laurel.down_proj.weight"].T @ t[p + "laurel.up_proj.weight"].T
        x = (x + normed + rms(t[p + "laurel.norm.weight"], low)) / 2**0.5
    added = network(t, p + "ffn.", rms(t[p + "ffn.pre_norm.weight"], x))
    return x + after(t.get(p + "ffn.post_norm.weight"), added)


def expected(t: Tensors, ids: Tensor, *, whole: bool) -> Tensor:
    """The states for ids, stream by stream."""
    first = t["embed.tokens.weight"][ids]
    spread = [t[f"merge.spread.{i}.weight"] for i in range(N - 1)]
    x = [first, *(as_large(first, first @ one.T) for one in spread)]
    for layer in range(N_LAYERS):
        p = f"layers.{layer}."
        weights = routed(t, p + "altup.", x[0]) @ t[p + "altup.predict.weight"].T
        y = [x[i] + sum(weights[..., i * N + j, None] * x[j] for j in range(N)) for i in range(N)]
        z = computed(t, p, y[0], whole=whole)
        gains = routed(t, p + "altup.", z) @ t[p + "altup.correct.weight"].T + 1
        x = [y[i] + gains[..., i, None] * (z - y[0]) for i in range(N)]
        if whole:
            read = x[0] * t[p + "input_scale"]
            gate = F.silu(read @ t[p + "layer_input.gate_proj.weight"].T)
            own = of_layer(t, ids, first, layer)
            added = (gate * own) @ t[p + "layer_input.out_proj.weight"].T
            added = rms(t[p + "layer_input.post_norm.weight"], added)
            x = [x[0], *(one + added for one in x[1:])]
    merge = [t[f"merge.merge.{i}.weight"] for i in range(N - 1)]
    mapped = [x[0], *(as_large(x[0], x[i + 1] @ one.T) for i, one in enumerate(merge))]
    return rms(t["norm.weight"], sum(mapped) / N)


@pytest.mark.parametrize("name", SPECS)
def test_states_and_gradients_are_those_of_the_formula(name: str) -> None:
    check_formula(built(SPECS[name]), partial(expected, whole=name != "plain"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_is_left_out_changes_nothing(side: str) -> None:
    check_padding(built(WHOLE), side)


@pytest.mark.parametrize("name", SPECS)
def test_a_cache_changes_nothing(name: str) -> None:
    check_cache(built(SPECS[name] | {"head": "linear"}))


def test_weights_of_attention() -> None:
    model = built(WHOLE | {"head": "linear"})
    output, maps = model(some_ids(), return_attention=True)
    assert output.shape == (2, LENGTH, VOCAB)
    assert len(maps.decoder) == N_LAYERS


def test_gates_that_are_closed() -> None:
    """All but those that are far enough above the mean of all, and what is left of these."""
    spec = PLAIN | {"block": "residual", "ffn": {"kind": "sparse_glu", "sparsity": 0.7}}
    ffn: Any = built(spec).decoder.layers[0].ffn
    x = torch.randn(5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = []
    for row in x:
        gates = (ffn.gate_proj.weight @ row).tolist()
        mean = sum(gates) / len(gates)
        spread = (sum((gate - mean) ** 2 for gate in gates) / len(gates)) ** 0.5
        least = mean + spread * NormalDist().inv_cdf(0.7)
        opened = torch.tensor([max(gate - least, 0.0) for gate in gates], dtype=torch.float64)
        assert 0 < (opened > 0).sum() < len(gates)
        expected.append(ffn.down_proj.weight @ (F.silu(opened) * (ffn.up_proj.weight @ row)))
    torch.testing.assert_close(ffn(x), torch.stack(expected))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block": PLAIN["block"] | {"n_streams": 1}}, "a single stream has no others to predict"),
        ({"norm_placement": "parallel"}, "run one after the other"),
        (
            {"block": PLAIN["block"] | {"laurel_rank": 2}, "self_attn": "none"},
            "stands beside the self-attention, and there is none",
        ),
        (
            {"block": PLAIN["block"], "embedding": WHOLE["embedding"] | {"layer_vocab": VOCAB}},
            "a table of 11 tokens is for all 11 of the model",
        ),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        zoo.read_spec(PLAIN | changes)
