"""Layers that attend to the keys and values of an earlier one: `cross_layer`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_values import add_noise
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo.showing.show import summary_data, summary_text

D_MODEL, HEADS, KV_HEADS, HEAD, D_FF, VOCAB = 24, 4, 2, 6, 20, 13
SHARED = "cross_layer"
WINDOW = 3


def spec(n_layers: int, layers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "sharing",
        "builder": "decoder",
        "vocab": VOCAB,
        "n_layers": n_layers,
        "d_model": D_MODEL,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "head_dim": HEAD,
        "d_ff": D_FF,
        "bias": False,
        "norm": "rms_norm",
        "position": "rotary",
        "decoder": {"layers": layers, "self_attn": {"qk_norm": "rms_norm"}},
        **more,
    }


def windows(at: list[int]) -> dict[str, Any]:
    return {"at": at, "self_attn": {"window": WINDOW}}


def sharing(at: list[int]) -> dict[str, Any]:
    return {"at": at, "self_attn": SHARED}


# The layers with windows, and which layer's keys and values each layer without own ones attends to.
CASES: dict[str, tuple[int, list[int], dict[int, int]]] = {
    "CLA of 2": (4, [], {1: 0, 3: 2}),
    "CLA of 3": (6, [], {1: 0, 2: 0, 4: 3, 5: 3}),
    "YOCO": (6, [0, 1, 2], {4: 3, 5: 3}),
    "Gemma": (8, [0, 1, 3, 4, 6], {4: 3, 5: 2, 6: 3, 7: 2}),
    "other layers between": (4, [1, 3], {2: 0, 3: 1}),
}


def of_case(name: str, **more: Any) -> dict[str, Any]:
    n_layers, near, sources = CASES[name]
    rules = [windows(near)] if near else []
    return spec(n_layers, [*rules, sharing(list(sources))], **more)


def built(data: dict[str, Any]) -> Any:
    return add_noise(zoo.build(data, dtype=torch.float64).eval(), 0.2)


def some_ids(batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


# --- a statement in plain PyTorch ---------------------------------------------------------------


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def rotated(x: Tensor) -> Tensor:
    """Each pair (i, i + HEAD / 2) of a head at position p, turned by p * 10000**(-2 i / HEAD)."""
    half = HEAD // 2
    speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * speeds
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def stated(
    weights: dict[str, Tensor], ids: Tensor, name: str, hidden: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The logits and the attention weights of the model of a case. `hidden` (batch, length) is True
    at padding."""
    n_layers, near, sources = CASES[name]
    length = ids.shape[1]
    x = weights["decoder.embed.tokens.weight"][ids]
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    maps = []
    distance = torch.arange(length)[:, None] - torch.arange(length)
    for layer in range(n_layers):

        def w(key: str, layer: int = layer) -> Tensor:
            return weights[f"decoder.layers.{layer}.{key}.weight"]

        def heads(x: Tensor, key: str) -> Tensor:
            return (x @ w(f"self_attn.{key}").T).unflatten(-1, (-1, HEAD)).transpose(1, 2)

        normed = rms(x, w("self_attn.pre_norm"))
        q = rotated(rms(heads(normed, "q_proj"), w("self_attn.q_norm")))
        if layer not in sources:
            k = rotated(rms(heads(normed, "k_proj"), w("self_attn.k_norm")))
            kept[layer] = k, heads(normed, "v_proj")
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in kept[sources.get(layer, layer)])
        seen = (distance >= 0) & (distance < (WINDOW if layer in near else length))
        if hidden is not None:
            seen = seen & ~hidden[:, None, None]
        scores = (q @ k.transpose(-1, -2) / math.sqrt(HEAD)).masked_fill(~seen, -math.inf)
        maps.append(scores.softmax(-1).nan_to_num(0.0))
        x = x + (maps[-1] @ v).transpose(1, 2).flatten(2) @ w("self_attn.o_proj").T
        normed = rms(x, w("ffn.pre_norm"))
        x = x + F.relu(normed @ w("ffn.up_proj").T) @ w("ffn.down_proj").T
    return rms(x, weights["decoder.norm.weight"]) @ weights["head.out.weight"].T, maps


@pytest.mark.parametrize("name", CASES)
def test_output_weights_and_gradients(name: str) -> None:
    model, ids = built(of_case(name)), some_ids()
    weights = {key: t.detach().clone().requires_grad_() for key, t in model.state_dict().items()}
    expected, expected_maps = stated(weights, ids, name)
    found = model(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    again, maps = model(ids, return_attention=True)
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)
    assert len(maps.decoder) == CASES[name][0]
    for one, other in zip(maps.decoder, expected_maps, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    factors = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    (found * factors).sum().backward()
    (expected * factors).sum().backward()
    for key, parameter in model.named_parameters():
        largest = float(weights[key].grad.abs().max())
        torch.testing.assert_close(
            parameter.grad, weights[key].grad, rtol=0, atol=1e-12 * max(1.0, largest)
        )


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_padding_on_either_side(name: str) -> None:
    model, ids = built(of_case(name)), some_ids(3)
    hidden = torch.zeros(3, 9, dtype=torch.bool)
    hidden[0, -4:] = hidden[1, :2] = True
    expected, _ = stated(model.state_dict(), ids, name, hidden)
    found = model(ids, target_mask=~hidden)
    torch.testing.assert_close(found[~hidden], expected[~hidden], rtol=0, atol=1e-12)


def test_gradients_with_layers_that_are_computed_again() -> None:
    """Activation checkpointing, where a layer puts its keys and values a second time."""
    plain, again = (built(of_case("Gemma")).train() for _ in range(2))
    for layer in again.decoder.layers:
        whole = layer.forward
        layer.forward = lambda *args, whole=whole: checkpoint(whole, *args, use_reentrant=False)
    for model in (plain, again):
        model(some_ids()).square().sum().backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_cache_keeps_shared_keys_once(name: str) -> None:
    model, ids = built(of_case(name)), some_ids(2, 12)
    whole = model(ids)
    for sizes in ([1] * 12, [5, 1, 6], [12]):
        cache = Cache(12)
        pieces = [model.decode(piece, cache=cache) for piece in ids.split(sizes, 1)]
        torch.testing.assert_close(model.head(torch.cat(pieces, 1)), whole, rtol=0, atol=1e-10)
        n_layers, near, sources = CASES[name]
        own = [layer for layer in range(n_layers) if layer not in sources]
        rooms = [min(12, 2 * WINDOW) if layer in near else 12 for layer in own]
        assert cache.n_bytes == 8 * 2 * sum(rooms) * 2 * KV_HEADS * HEAD


@pytest.mark.parametrize("name", CASES)
def test_counts_in_closed_form(name: str) -> None:
    n_layers, near, sources = CASES[name]
    found = zoo.read_spec(of_case(name))
    data = summary_data(found)
    n_own = n_layers - len(sources)
    kv_width = 2 * KV_HEADS * HEAD
    assert found.layout.cache_per_token == n_own * kv_width
    recent = len([layer for layer in near if layer not in sources]) * kv_width
    assert dict(found.layout.cache_per_recent_token) == ({WINDOW: recent} if recent else {})
    layer = 2 * D_MODEL * HEADS * HEAD + HEAD + 2 * D_MODEL + 2 * D_MODEL * D_FF
    own = D_MODEL * kv_width + HEAD
    n = 2 * VOCAB * D_MODEL + D_MODEL + n_layers * layer + n_own * own
    assert found.n_parameters == n
    assert f"{4 * n_own * kv_width:,} B float32" in summary_text(data)


def test_operations() -> None:
    """Those of a layer without maps to keys and values, and with the same scores."""
    plain, shared = (zoo.flops(data, 10)["forward"] for data in (spec(4, []), of_case("CLA of 2")))
    assert plain - shared == 2 * (2 * 10 * D_MODEL * 2 * KV_HEADS * HEAD)


def test_whose_keys_are_used_is_shown() -> None:
    lines = summary_text(summary_data(zoo.read_spec(of_case("Gemma")))).splitlines()
    rows = [line.split("residual")[1] for line in lines if "layers" in line and "each" in line]
    assert rows == ["", "", ", keys of layer 3", ", keys of layer 2"]
    many = spec(14, [{"every": 2, "self_attn": SHARED}])
    assert "residual, keys of layers 0, 2, 4, 6, ..." in summary_text(
        summary_data(zoo.read_spec(many))
    )


@pytest.mark.parametrize("name", ["CLA of 3", "Gemma"])
def test_generation(name: str) -> None:
    model = built(of_case(name))
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    for method in (zoo.Beam(size=3), zoo.Sampling(seed=3)):
        options = {"max_new_tokens": 8, "method": method}
        cached = zoo.generate(model, prompts, **options)
        anew = zoo.generate(model, prompts, cache=False, **options)
        alone = [zoo.generate(model, [prompt], **options)[0] for prompt in prompts]
        assert [one.ids for one in cached] == [one.ids for one in anew]
        for one, other in zip(cached, anew, strict=True):
            assert one.score == pytest.approx(other.score, rel=0, abs=1e-10)
        if isinstance(method, zoo.Beam):
            assert [one.ids for one in cached] == [one.ids for one in alone]


# --- around it ----------------------------------------------------------------------------------


def test_other_tensors_keep_their_initial_values() -> None:
    plain, shared = zoo.build(spec(4, [])), zoo.build(of_case("CLA of 2"))
    of_all, of_some = plain.state_dict(), shared.state_dict()
    gone = {
        f"decoder.layers.{layer}.self_attn.{name}.weight"
        for layer in (1, 3)
        for name in ("k_proj", "v_proj", "k_norm")
    }
    assert of_all.keys() - of_some.keys() == gone
    assert all(torch.equal(tensor, of_all[name]) for name, tensor in of_some.items())


@torch.no_grad()
def test_layers_that_run_again() -> None:
    """Each run has keys and values of its own, which the runs after it attend to."""
    again = {"share_layers": [0, 1, 0, 1], "layers": [sharing([1, 3])]}
    model = built(spec(4, [], decoder=again))
    twice = built(spec(4, [], decoder={"layers": [sharing([1, 3])]}))
    weights = model.state_dict()
    for layer in (2, 3):
        for key in list(weights):
            if key.startswith(f"decoder.layers.{layer - 2}."):
                weights[key.replace(f"layers.{layer - 2}.", f"layers.{layer}.")] = weights[key]
    twice.load_state_dict(weights)
    ids = some_ids()
    torch.testing.assert_close(model(ids), twice(ids), rtol=0, atol=1e-13)
    cache = Cache(9)
    torch.testing.assert_close(
        model.head(model.decode(ids, cache=cache)), twice(ids), rtol=0, atol=1e-12
    )
    assert cache.n_bytes == 8 * 2 * 9 * 2 * (2 * KV_HEADS * HEAD)
    assert zoo.read_spec(spec(4, [], decoder=again)).layout.cache_per_token == 4 * KV_HEADS * HEAD


@pytest.mark.parametrize("builder", ["encoder", "encoder_decoder"])
@torch.no_grad()
def test_encoders_and_decoders_of_a_source(builder: str) -> None:
    """The keys of the first layer give the second the output that equal keys of its own would."""
    vocab = {"vocab": VOCAB} if builder == "encoder" else {}
    vocab |= {} if vocab else {"source_vocab": VOCAB, "target_vocab": VOCAB}
    base = {k: v for k, v in spec(2, []).items() if k not in ("vocab", "decoder")}
    stacks = ("encoder",) if builder == "encoder" else ("encoder", "decoder")
    rules = {stack: {"layers": [sharing([1])]} for stack in stacks}
    model = built({**base, **vocab, **rules, "builder": builder})
    inputs = [some_ids()] * len(vocab)
    output = model(*inputs)
    first = model.get_submodule(f"{stacks[-1]}.layers.0.self_attn")
    second = model.get_submodule(f"{stacks[-1]}.layers.1.self_attn")
    assert not hasattr(second, "k_proj")
    first.v_proj.weight.zero_()
    second.o_proj.weight.normal_()  # which multiplies zeros now
    silent = model(*inputs)
    second.o_proj.weight.normal_()
    torch.testing.assert_close(model(*inputs), silent, rtol=0, atol=0)
    assert not torch.equal(output, silent)


# --- what contradicts ---------------------------------------------------------------------------

FULL = "this one has no `window` and no `chunk`"
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "the first layer": (
        spec(3, [sharing([0])]),
        "layer 0 attends to the keys and values of a layer before it, and there is none with",
        "decoder.layers.0.self_attn",
    ),
    "all layers": (
        spec(3, [], decoder={"self_attn": SHARED}),
        "layer 0 attends to the keys and values of a layer before it, and there is none with",
        "decoder.self_attn",
    ),
    "those of later layers": (spec(3, [windows([0]), sharing([1])]), FULL, "decoder.layers.1"),
    "no layer that sees as far": (
        spec(3, [{"at": [2], "self_attn": {"kind": SHARED, "window": 5}}]),
        'that sees as far: this one has `window = 5` and `window_sides = "past"`',
        "decoder.layers.0.self_attn.window",
    ),
    "a chunk": (
        spec(3, [{"at": [2], "self_attn": {"kind": SHARED, "chunk": 5}}]),
        "that sees as far: this one has `chunk = 5`",
        "decoder.layers.0.self_attn.chunk",
    ),
    "other positions": (
        spec(3, [{**sharing([2]), "position": {"kind": "rotary", "base": 500.0}}]),
        "none that sees as far has the same positions",
        "decoder.layers.0.position",
    ),
    "other heads": (
        spec(3, [{**sharing([2]), "n_kv_heads": 4}]),
        "layer 2 attends to the keys and values of layer 1, and has n_kv_heads = 4, not 2",
        "decoder.layers.0.n_kv_heads",
    ),
    "other widths": (
        spec(3, [{**sharing([2]), "head_dim": 8}]),
        "layer 2 attends to the keys and values of layer 1, and has head_dim = 8, not 6",
        "decoder.layers.0.head_dim",
    ),
    "other widths of values": (
        spec(3, [{"at": [1], "self_attn": {"kind": SHARED, "v_head_dim": 8}}]),
        "layer 1 attends to the keys and values of layer 0, and has v_head_dim = 8, not 6",
        "decoder.layers.0.self_attn.v_head_dim",
    ),
    "another kind": (
        spec(3, [sharing([2])], decoder={"self_attn": "differential", "layers": [sharing([2])]}),
        "layer 2 attends to the keys and values of a layer before it, and there is none with",
        "decoder.layers.0.self_attn",
    ),
    "a cross-attention": (
        spec(3, [], memory_width=7, decoder={"layers": [{"at": [1], "cross_attn": SHARED}]}),
        "the keys and values of a cross-attention are those of the memory",
        "decoder.layers.0.cross_attn",
    ),
    "the same weights": (
        spec(4, [], decoder={"share_layers": True, "layers": [sharing([1])]}),
        "layers 0 and 1 share their weights and cannot differ",
        "decoder.share_layers",
    ),
    "what is about keys": (
        spec(3, [{"at": [1], "self_attn": {"kind": SHARED, "values": "keys"}}]),
        "unknown key `values`",
        "decoder.layers.0.self_attn.values",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_contradictions_are_errors_with_places(name: str) -> None:
    data, told, place = WRONG[name]
    with pytest.raises(SpecError) as caught:
        zoo.read_spec(data)
    assert told in str(caught.value)
    assert place in str(caught.value)


def test_a_spec_keeps_its_meaning_when_it_is_saved() -> None:
    first = zoo.read_spec(of_case("Gemma"))
    again = zoo.read_spec(first.to_dict())
    assert again.digest == first.digest
    assert again.model.decoder == first.model.decoder
