"""Several residual streams, by the papers' formulas in plain PyTorch, and by `transformers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
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
from zoo.drawing.stacks import figure_of
from zoo.errors import SpecError
from zoo.testing import check_plugin
from zoo_components.modules.streams import ManifoldHyperConnection

N = 4
HYPER, MANIFOLD = "hyper_connected", "manifold_hyper_connected"
BLOCKS: dict[str, dict[str, Any]] = {
    "static": {"kind": HYPER, "dynamic": False},
    "dynamic": {"kind": HYPER},
    "dynamic, post-norm": {"kind": HYPER, "norm_placement": "post"},
    "manifold": {"kind": MANIFOLD, "merge": "weighted", "n_streams": 3, "norm_eps": 0.1},
    "manifold, scaled": {
        "kind": MANIFOLD,
        "residual_scale": 0.4,
        "skip_scale": 0.8,
        "layer_scale": "learned",
        "sinkhorn_steps": 3,
        "gate_eps": 0.1,
    },
}
Connected = tuple[Tensor, Tensor, Tensor]


def spec_of(block: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """A spec with this block; the norms are stated around it."""
    own = {key: value for key, value in block.items() if key != "norm_placement"}
    placement = block.get("norm_placement", "pre")
    return SMALL | {"block": own, "norm_placement": placement} | values


def hyper(t: Tensors, p: str, k: int, x: Tensor) -> Connected:
    """The formulas of Zhu et al. for the k-th branch, with streams that stay in place. What
    the model calls its i-th stream before the branch is the one of number i + k, and of number
    i + k + 1 after it."""
    n = x.shape[-2]
    before = [(i + k) % n for i in range(n)]
    after = [(i + k + 1) % n for i in range(n)]
    read, mix, write = (torch.zeros(*x.shape[:-1], m, dtype=x.dtype) for m in (1, n, 1))
    read, write = read[..., 0].clone(), write[..., 0].clone()
    read[..., before] = t[p + "read"].expand(read.shape)
    write[..., after] = t[p + "write"].expand(write.shape)
    for j in range(n):
        for i in range(n):
            mix[..., before[j], after[i]] = t[p + "mix"][j, i]
    if p + "read_map" in t:
        h = rms(t[p + "norm.weight"], x)
        s_alpha, s_beta = t[p + "width_scale"], t[p + "depth_scale"]
        read = read + s_alpha * torch.tanh(h @ t[p + "read_map"])
        write = write + s_beta * torch.tanh(h @ t[p + "write_map"])
        columns = torch.stack([t[p + "mix_map"][after.index(i)] for i in range(n)])
        mix = mix + s_alpha * torch.tanh(h @ columns.T)
    read = read + F.one_hot(torch.tensor(k % n), n)
    mix = mix + torch.eye(n, dtype=x.dtype)
    return (
        torch.einsum("bln,blnd->bld", read, x),
        torch.einsum("blji,bljd->blid", mix, x),
        write,
    )


def gate(t: Tensors, p: str, x: Tensor, eps: float) -> Tensor:
    flat = rms(1.0, x.flatten(-2), eps)
    return t[p + "scale"] * (flat @ t[p + "weight"].T) + t[p + "bias"]


def manifold(
    t: Tensors, p: str, k: int, x: Tensor, *, steps: int, norm_eps: float, gate_eps: float
) -> Connected:
    """The formulas of Xie et al., with the small numbers of DeepSeek-V4."""
    n = x.shape[-2]
    mix = gate(t, p + "mix.", x, norm_eps).exp().unflatten(-1, (n, n))
    rows, columns = "...ij->...i", "...ij->...j"
    for step in range(steps):
        sums = torch.einsum(rows, mix)[..., :, None]
        mix = mix / sums + gate_eps if step == 0 else mix / (sums + gate_eps)
        mix = mix / (torch.einsum(columns, mix)[..., None, :] + gate_eps)
    read = 1 / (1 + (-gate(t, p + "read.", x, norm_eps)).exp()) + gate_eps
    write = 2 / (1 + (-gate(t, p + "write.", x, norm_eps)).exp())
    return (
        torch.einsum("bln,blnd->bld", read, x),
        torch.einsum("blji,bljd->blid", mix, x),
        write,
    )


def expected(t: Tensors, ids: Tensor, block: Mapping[str, Any]) -> Tensor:
    """The states for ids."""
    n = block.get("n_streams", N)
    eps = {"norm_eps": block.get("norm_eps", 1e-6), "gate_eps": block.get("gate_eps", 1e-6)}
    connect: Callable[..., Connected] = hyper
    if block["kind"] == MANIFOLD:
        connect = partial(manifold, steps=block.get("sinkhorn_steps", 20), **eps)
    post = block.get("norm_placement") == "post"

    def branch(name: str, k: int, streams: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        p = f"layers.{k // 2}.{name}."
        read, kept, write = connect(t, f"layers.{k // 2}.streams.{name}.", k, streams)
        made = f(read) if post else f(rms(t[p + "pre_norm.weight"], read))
        added = block.get("residual_scale", 1.0) * torch.einsum("bld,bln->blnd", made, write)
        new = block.get("skip_scale", 1.0) * kept + added
        return rms(t[p + "out_norm.weight"], new) if post else new

    x = torch.stack([t["embed.tokens.weight"][ids]] * n, -2)
    for layer in range(N_LAYERS):
        p = f"layers.{layer}."
        x = branch("self_attn", 2 * layer, x, partial(attention, t, p + "self_attn."))
        x = branch("ffn", 2 * layer + 1, x, partial(network, t, p + "ffn."))
        x = x * t.get(p + "scalar", 1.0)
    merge = block.get("merge", "sum")
    if merge == "weighted":
        read = gate(t, "merge.read.", x, eps["norm_eps"]).sigmoid() + eps["gate_eps"]
        x = torch.einsum("bln,blnd->bld", read, x)
    else:
        x = sum(x.unbind(-2)) / (n if merge == "mean" else 1)
    return x if post else rms(t["norm.weight"], x)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_states_and_gradients_are_those_of_the_formulas(block: Mapping[str, Any]) -> None:
    check_formula(built(spec_of(block)), partial(expected, block=block))


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_new_model_of_hyper_connections_computes_what_residual_does(
    dynamic: bool, n: int
) -> None:
    """And learns as it does, but for the tensors that it has besides."""
    block = {"kind": HYPER, "dynamic": dynamic, "n_streams": n, "merge": "mean"}
    plain, model = (
        zoo.build(spec_of(one), dtype=torch.float64) for one in ({"kind": "residual"}, block)
    )
    ids = some_ids()
    outputs = [one(ids) for one in (plain, model)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    for output in outputs:
        output.sin().sum().backward()
    others = dict(model.named_parameters())
    for name, tensor in plain.named_parameters():
        torch.testing.assert_close(tensor.grad, others[name].grad, rtol=0, atol=1e-12, msg=name)


def test_streams_of_hyper_connections_part_in_the_first_steps() -> None:
    """No two of them stay alike, as those do that are always read and written together."""
    model = zoo.build(spec_of(BLOCKS["static"], n_layers=4), dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad()
        model(some_ids(seed)).sin().sum().backward()
        optimizer.step()
    streams: list[Tensor] = []
    model.decoder.layers[-1].register_forward_hook(lambda _, __, out: streams.append(out[0]))
    model(some_ids())
    (found,) = streams
    for i in range(N):
        for j in range(i):
            assert (found[..., i, :] - found[..., j, :]).abs().max() > 1e-4


@pytest.mark.parametrize("n", [2, 4])
def test_a_new_model_of_gates_computes_what_residual_does_but_for_their_maps(n: int) -> None:
    block = {"kind": MANIFOLD, "n_streams": n, "merge": "mean", "gate_eps": 0.0}
    plain, model = (
        zoo.build(spec_of(one), dtype=torch.float64) for one in ({"kind": "residual"}, block)
    )
    ids = some_ids()
    right = plain(ids)
    off = (model(ids) - right).abs().max()
    assert 1e-6 < off < 0.1
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".streams." in name and name.endswith("weight"):
                tensor.zero_()
    torch.testing.assert_close(model(ids), right, rtol=1e-11, atol=1e-11)


def test_a_matrix_is_made_doubly_stochastic() -> None:
    """And the sum of the streams stays as it is, but for what a branch adds."""
    connection = ManifoldHyperConnection(WIDTH, N, steps=200, norm_eps=1e-6, gate_eps=0.0).double()
    random = torch.Generator().manual_seed(3)
    for tensor in connection.parameters():
        torch.nn.init.normal_(tensor, generator=random)
    x = torch.randn(2, LENGTH, N, WIDTH, dtype=torch.float64, generator=random)
    found = connection.doubly_stochastic(torch.randn(5, N, N, dtype=torch.float64))
    assert (found > 0).all()
    for axis in (-1, -2):
        torch.testing.assert_close(found.sum(axis), torch.ones_like(found[..., 0]))
    torch.testing.assert_close(connection(x)[1].sum(-2), x.sum(-2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_compute_what_those_of_transformers_do(dtype: torch.dtype) -> None:
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    config = DeepseekV4Config(hidden_size=WIDTH, hc_mult=N, rms_norm_eps=1e-5, hc_eps=1e-3)
    connection = theirs.DeepseekV4HyperConnection(config)
    head = theirs.DeepseekV4HyperHead(config)
    random = torch.Generator().manual_seed(4)
    for tensor in (*connection.parameters(), *head.parameters()):
        torch.nn.init.normal_(tensor, std=0.5, generator=random)
    block = {"kind": MANIFOLD, "merge": "weighted", "norm_eps": 1e-5, "gate_eps": 1e-3}
    model = zoo.build(spec_of(block))
    own, merge = model.decoder.layers[0].streams.ffn, model.decoder.merge
    sizes = [N, N, N * N]
    with torch.no_grad():
        for number, gate in enumerate((own.read, own.write, own.mix)):
            gate.weight.copy_(connection.fn.split(sizes)[number])
            gate.bias.copy_(connection.base.split(sizes)[number])
            gate.scale.copy_(connection.scale[number])
        merge.read.weight.copy_(head.hc_fn)
        merge.read.bias.copy_(head.hc_base)
        merge.read.scale.copy_(head.hc_scale)
    x = torch.randn(2, LENGTH, N, WIDTH, generator=random).to(dtype)
    post, comb, collapsed = connection(x)
    read, kept, write = own(x)
    exact = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.01}
    torch.testing.assert_close(read, collapsed, **exact)
    torch.testing.assert_close(write, post.to(dtype), **exact)
    torch.testing.assert_close(kept, comb.to(dtype).transpose(-1, -2) @ x, **exact)
    torch.testing.assert_close(merge(x), head(x), **exact)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_autocast_does_not_round_the_streams(block: Mapping[str, Any]) -> None:
    """Every branch would round them once more. It rounds what the maps of `dynamic` read."""
    model = built(spec_of(block)).float()
    connection = model.decoder.layers[0].streams.ffn
    x = torch.randn(2, LENGTH, block.get("n_streams", N), WIDTH)
    exact = connection(x)[1]
    with torch.autocast("cpu", torch.bfloat16):
        kept = connection(x)[1]
    assert kept.dtype == torch.float32
    tolerance = 0.2 if hasattr(connection, "mix_map") else 1e-6
    torch.testing.assert_close(kept, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [HYPER, MANIFOLD])
def test_padding_that_is_left_out_changes_nothing(kind: str, side: str) -> None:
    check_padding(built(spec_of({"kind": kind})), side)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_cache_changes_nothing(block: Mapping[str, Any]) -> None:
    check_cache(built(spec_of(block, head="linear")))


@pytest.mark.parametrize("kind", [HYPER, MANIFOLD])
def test_streams_of_both_stacks_with_weights_of_attention(kind: str) -> None:
    spec = SMALL | {"builder": "encoder_decoder", "source_vocab": VOCAB, "target_vocab": VOCAB}
    del spec["vocab"]
    model = zoo.build(spec | {"head": "linear", "block": kind}).eval()
    assert model.decoder.layers[0].streams.keys() == {"self_attn", "cross_attn", "ffn"}
    output, maps = model(some_ids(), some_ids(3), return_attention=True)
    assert output.shape == (2, LENGTH, VOCAB)
    assert len(maps.cross) == len(maps.decoder) == len(maps.encoder) == N_LAYERS


def test_a_saved_model_is_loaded(tmp_path: Path) -> None:
    model, ids = built(spec_of(BLOCKS["manifold"])), some_ids()
    zoo.save(model, tmp_path / "model")
    loaded = zoo.load(tmp_path / "model").eval()
    assert torch.equal(loaded(ids), model(ids))


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_the_number_of_parameters(block: Mapping[str, Any]) -> None:
    n = block.get("n_streams", N)
    numbers = {
        "static": n * n + 2 * n,
        "dynamic": n * n + 2 * n + WIDTH * (n + 3) + 2,
        "manifold": (n * n + 2 * n) * (n * WIDTH + 1) + 3,
    }
    name = "static" if block.get("dynamic") is False else block["kind"].split("_")[0]
    each = numbers["dynamic" if name == "hyper" else name]
    tensors = zoo.read_spec(spec_of(block)).tensors.items()
    found = sum(prod(tensor.shape) for name, tensor in tensors if ".streams." in name)
    assert found == 2 * N_LAYERS * each
    merged = sum(prod(tensor.shape) for name, tensor in tensors if ".merge." in name)
    assert merged == (n * (n * WIDTH + 1) + 1 if block.get("merge") == "weighted" else 0)


def test_what_gates_cost() -> None:
    """Three maps of all streams, and the product of a matrix with the streams, in each branch."""
    (decoder,) = zoo.flops(spec_of({"kind": MANIFOLD}), LENGTH)["parts"]
    (layers,) = decoder["parts"]
    parts = {part["name"]: part["flops"] for part in layers["parts"]}
    maps = 2 * (N * WIDTH) * (N * N + 2 * N)
    mixing = 2 * N * N * WIDTH
    assert parts["streams"] == LENGTH * 2 * N_LAYERS * (maps + mixing)
    assert sum(parts.values()) == decoder["flops"]


def test_new_values() -> None:
    model = zoo.build(spec_of({"kind": MANIFOLD}))
    streams = model.decoder.layers[0].streams.ffn
    assert streams.read.bias.sigmoid().tolist() == pytest.approx([1 / N] * N)
    assert not streams.mix.bias.any()
    assert not streams.write.bias.any()
    assert {gate.scale.item() for gate in streams.children()} == {torch.tensor(0.01).item()}
    assert streams.mix.weight.std() > 0.1 / math.sqrt(N * WIDTH)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"norm_placement": "parallel"}, "run one after the other"),
        (
            {"decoder": {"layers": [{"at": [1], "block": {"kind": "residual"}}]}},
            "the residual streams go through all layers",
        ),
        (
            {"decoder": {"layers": [{"at": [1], "block": {"n_streams": 2}}]}},
            "the residual streams go through all layers",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(spec_of({"kind": HYPER}) | values)


def test_layers_of_both_kinds() -> None:
    rule = {"at": [1], "block": {"kind": MANIFOLD}}
    model = zoo.build(spec_of({"kind": HYPER}, decoder={"layers": [rule]}))
    assert model(some_ids()).shape == (2, LENGTH, WIDTH)


def test_what_merges_the_streams_is_drawn_below_the_norm_that_follows() -> None:
    block = {"kind": "manifold_hyper_connected", "merge": "weighted"}
    sizes = {"vocab": 11, "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 8}
    spec = {"format": 1, "name": "drawn", "builder": "decoder", "block": block, **sizes}
    (column,) = figure_of(zoo.read_spec(spec)).columns
    assert [box.title for box in column.after] == ["merge", "layer_norm", "linear"]


NARROW = '''
from zoo_components.streams import HyperConnected


class Narrow(HyperConnected):
    """A layer that returns one stream of those that it gets."""

    def build(self):
        block = super().build()
        forward = block.forward

        def first(x, context):
            states, weights = forward(x, context)
            return states[..., 0, :], weights

        block.forward = first
        return block
'''


def test_the_check_of_plugins_tells_of_streams_that_get_lost(tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    registry = tmp_path / "registry.toml"
    registry.write_text('format = 1\n[block]\nnarrow = "narrow.py:Narrow"\n')
    with pytest.raises(AssertionError) as failed:
        check_plugin("block", "narrow", registry=registry)
    assert "the states must be (2, 6, 4, 16), not (2, 6, 16)" in str(failed.value)
