"""Heads of a space that texts and images share, against one sequence at a time and torch's own
attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references.heads import D_MODEL, VOCAB, built, linear, same, states
from torch import nn
from torch.nn import functional as F

import zoo
from zoo_components.joint import AttentionPooling, JointEmbedding, QueryPooling, TwoMapEmbedding
from zoo_components.norm import LayerNorm, NoNorm

IDS = torch.tensor([[1, 7, 2, 7, 0], [7, 9, 3, 9, 9], [4, 4, 1, 2, 3]])
"""The first 7 is second, first and nowhere; the first of the highest is second, second and
first."""
PLACES = {"first": [0, 0, 0], "last_position": [4, 4, 4], "end_token": [1, 0, 0]}
PLACES["highest_id"] = [1, 1, 0]
NORM = LayerNorm(kind="layer_norm", width=D_MODEL)
NO_NORM = NoNorm(kind="none", width=D_MODEL)


def joint(pooling: str, **options: Any) -> nn.Module:
    more = {"norm": NO_NORM, "normalize": False} | options
    end = {"end_id": 7} if pooling == "end_token" else {}
    sizes = {"d_model": D_MODEL, "vocab": VOCAB}
    return built(JointEmbedding(kind="joint_embedding", pooling=pooling, **sizes, **end, **more))


@pytest.mark.parametrize("pooling", PLACES)
def test_the_state_of_one_position(pooling: str) -> None:
    module, x = joint(pooling), states(3, 5)
    expected = torch.stack([one[place] for one, place in zip(x, PLACES[pooling], strict=True)])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]).bool()
    for options in ({}, {"mask": mask}):
        same(module(x, ids=IDS, **options), expected, module, x)
    same(module(x[0], ids=IDS[0])[None], expected[:1], module, x)  # without a batch


def test_the_mean_state_after_the_first() -> None:
    module, x = joint("mean_after_first"), states(3, 5)
    same(module(x), torch.stack([one[1:].sum(0) / 4 for one in x]), module, x)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()
    expected = torch.stack([x[0, 1:].sum(0) / 4, (x[1, 1] + x[1, 4]) / 2, x[2, 1] * 0])
    same(module(x, mask=mask), expected, module, x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_map_to_the_space(normalize: bool, bias: bool) -> None:
    module, x = joint("first", norm=NORM, d_out=4, bias=bias, normalize=normalize), states(3, 5)
    w = module.state_dict(keep_vars=True)
    assert ("proj.bias" in w) == bias
    normed = F.layer_norm(x[:, 0], [D_MODEL], w["norm.weight"], w["norm.bias"], 1e-5)
    expected = linear(w, "proj", normed)
    if normalize:
        expected = expected / expected.square().sum(-1, keepdim=True).sqrt()
    same(module(x), expected, module, x)


@pytest.mark.parametrize("pooling", ["end_token", "highest_id"])
def test_the_ids_are_asked_for(pooling: str) -> None:
    with pytest.raises(ValueError, match=f"pooling = {pooling} goes by the tokens"):
        joint(pooling)(states(3, 5))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_a_query_gathers_the_states(masked: bool, normalize: bool) -> None:
    """torch's own attention has the same weights, fused."""
    description = AttentionPooling(
        kind="attention_pooling",
        d_model=D_MODEL,
        n_heads=2,
        d_ff=9,
        activation="gelu",
        norm=NORM,
        normalize=normalize,
    )
    module, x = built(description), states(3, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0]]).bool()
    w = module.state_dict(keep_vars=True)
    qkv = [[w[f"attn.{p}_proj.{kind}"] for p in "qkv"] for kind in ("weight", "bias")]
    fused = [torch.cat(parts) for parts in qkv]
    query, keys = w["query"].expand(1, 3, D_MODEL), x.transpose(0, 1)
    found, _ = F.multi_head_attention_forward(
        query, keys, keys, D_MODEL, 2, *fused, None, None, False, 0.0,
        w["attn.o_proj.weight"], w["attn.o_proj.bias"],
        key_padding_mask=~mask if masked else None,
    )  # fmt: skip
    y = found[0]
    normed = F.layer_norm(y, [D_MODEL], w["norm.weight"], w["norm.bias"], 1e-5)
    expected = y + linear(w, "ffn.down_proj", F.gelu(linear(w, "ffn.up_proj", normed)))
    if normalize:
        expected = expected / expected.square().sum(-1, keepdim=True).sqrt()
    same(module(x, mask=mask if masked else None), expected, module, x)
    one = module(x[1], mask=mask[1] if masked else None)  # without a batch
    torch.testing.assert_close(one, expected[1], rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("hidden_bias", "bias", "normalize"), [(True, False, True), (False, True, False)]
)
def test_two_maps_of_a_state(hidden_bias: bool, bias: bool, normalize: bool) -> None:
    description = TwoMapEmbedding(
        kind="two_map_embedding",
        d_model=D_MODEL,
        norm=NORM,
        d_hidden=5,
        d_out=3,
        hidden_bias=hidden_bias,
        bias=bias,
        normalize=normalize,
    )
    assert description.vector_width == 3
    n_parameters = sum(math.prod(t.shape) for _, t in description.layout().tensors())
    maps = D_MODEL * 5 + 5 * hidden_bias + 5 * 3 + 3 * bias
    assert n_parameters == 2 * D_MODEL + maps
    module, x = built(description), states(3, 5)
    w = module.state_dict(keep_vars=True)
    y = F.layer_norm(x[:, 0], [D_MODEL], w["norm.weight"], w["norm.bias"], 1e-5)
    y = F.linear(y, w["hidden_proj.weight"], w.get("hidden_proj.bias"))
    y = F.linear(y, w["proj.weight"], w.get("proj.bias"))
    if normalize:
        y = y / y.square().sum(-1, keepdim=True).sqrt()
    same(module(x), y, module, x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("bias", "normalize"), [(True, False), (False, True)])
def test_a_query_without_a_map(masked: bool, bias: bool, normalize: bool) -> None:
    """The weights of each head are of its part of the query and of the keys."""
    description = QueryPooling(
        kind="query_pooling", d_model=D_MODEL, n_heads=2, bias=bias, normalize=normalize
    )
    n_biases = D_MODEL * (1 + 2 * bias)
    n_parameters = sum(math.prod(t.shape) for _, t in description.layout().tensors())
    assert n_parameters == 3 * D_MODEL**2 + D_MODEL + n_biases
    module, x = built(description), states(3, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0]]).bool()
    w, half = module.state_dict(keep_vars=True), D_MODEL // 2
    rows = []
    for one, seen in zip(x, mask, strict=True):
        keys, values = (F.linear(one, w[f"{p}_proj.weight"], w.get(f"{p}_proj.bias")) for p in "kv")
        parts = []
        for head in (slice(0, half), slice(half, D_MODEL)):
            scores = keys[:, head] @ w["query"][head] / half**0.5
            if masked:
                scores = scores.masked_fill(~seen, -torch.inf)
            parts.append(scores.softmax(0) @ values[:, head])
        rows.append(linear(w, "out", torch.cat(parts)))
    expected = torch.stack(rows)
    if normalize:
        expected = expected / expected.square().sum(-1, keepdim=True).sqrt()
    same(module(x, mask=mask if masked else None), expected, module, x)


TEXTS: dict[str, Any] = {
    "format": 1,
    "name": "texts",
    "builder": "encoder",
    "vocab": VOCAB,
    "n_layers": 2,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 12,
    "encoder": {"causal": True},
}
IMAGES: dict[str, Any] = {
    "embedding": {"kind": "patches", "image_size": 6, "patch_size": 2},
    "position": {"kind": "learned", "max_length": 10},
}


def test_a_text_ends_where_its_token_is() -> None:
    """What follows in a causal encoder changes nothing, nor does it whether a mask hides it."""
    head = {"kind": "joint_embedding", "pooling": "end_token", "end_id": 7, "d_out": 5}
    model = zoo.build(TEXTS | {"head": head}, dtype=torch.float64).eval()
    text = torch.tensor([[3, 5, 7, 7, 2]])
    mask = torch.tensor([[True, True, True, False, False]])
    expected = model(text[:, :3])
    assert expected.norm().item() == pytest.approx(1)
    torch.testing.assert_close(model(text), expected)
    torch.testing.assert_close(model(text, source_mask=mask), expected)
    assert model.spec.layout.cache_per_token == 0


def test_the_state_of_padding_is_computed_if_it_is_read() -> None:
    """In inference too, where padding is left out otherwise: a gradient makes no difference."""
    head = {"kind": "joint_embedding", "pooling": "last_position"}
    model = zoo.build(TEXTS | {"encoder": {}, "head": head}, dtype=torch.float64).eval()
    text, mask = torch.tensor([[3, 5, 7, 2, 1]] * 2), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    expected = model(text, source_mask=mask)
    with torch.inference_mode():
        found = model(text, source_mask=mask)
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"kind": "joint_embedding", "pooling": "end_token"}}, "state `end_id`"),
        (
            {"head": {"kind": "joint_embedding", "pooling": "end_token", "end_id": VOCAB}},
            f"end_id = {VOCAB} is beyond the vocabulary of {VOCAB} tokens",
        ),
        (
            {"head": {"kind": "attention_pooling", "n_heads": 3}},
            "d_model = 8 is not divisible by n_heads = 3",
        ),
        (
            {"head": {"kind": "query_pooling", "n_heads": 3}},
            "d_model = 8 is not divisible by n_heads = 3",
        ),
        (
            {"head": {"kind": "joint_embedding", "end_id": 3}},
            'goes with `pooling = "end_token"`, not `pooling = "first"`',
        ),
        ({"head": {"kind": "joint_embedding", "bias": True}}, "changes nothing beside `d_out"),
        (
            {"head": {"kind": "joint_embedding", "pooling": "highest_id"}, **IMAGES},
            "goes by the ids of tokens here, and the embedding `patches` takes none",
        ),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(TEXTS | changes)
    assert message in str(caught.value)


def test_ids_need_a_vocabulary() -> None:
    images = {key: value for key, value in TEXTS.items() if key != "vocab"} | IMAGES
    with pytest.raises(zoo.SpecError, match="the key `vocab` is missing: `head` needs it"):
        zoo.read_spec(images | {"head": {"kind": "joint_embedding", "pooling": "highest_id"}})
