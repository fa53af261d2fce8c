"""Mixtures of experts that the ids of tokens choose, against a reference that takes one token at a
time; scores by the root of softplus, and experts with clipped gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from random_values import randomize
from torch import Tensor, nn

import zoo
from zoo.errors import SpecError
from zoo.registry import load_registry

WIDTH, D_FF, N_EXPERTS, TOP_K, SHARED, VOCAB = 6, 5, 5, 2, 7, 11
LIMIT = 0.4
FFN: dict[str, Any] = {
    "kind": "hash_moe",
    "n_experts": N_EXPERTS,
    "top_k": TOP_K,
    "d_ff": D_FF,
    "bias": False,
    "expert": "clipped_glu",
    "limit": LIMIT,
    "shared_d_ff": SHARED,
    "router": {"score": "sqrt_softplus", "normalize": True, "scale": 1.5},
}
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "hashed",
    "builder": "decoder",
    "vocab": VOCAB,
    "n_layers": 2,
    "d_model": WIDTH,
    "n_heads": 2,
    "ffn": FFN,
}
Tensors = Mapping[str, Tensor]


def network(**values: Any) -> nn.Module:
    """The network of the first layer, in float64, with random tensors and a random table."""
    model = zoo.build(SPEC | {"ffn": FFN | values}, dtype=torch.float64).eval()
    ffn = randomize(model.get_submodule("decoder.layers.0.ffn"), seed=1)
    if "experts_of_ids" in dict(ffn.router.named_buffers()):
        random = torch.Generator().manual_seed(3)
        ffn.router.experts_of_ids.copy_(
            torch.stack([torch.randperm(N_EXPERTS, generator=random)[:TOP_K] for _ in range(VOCAB)])
        )
    return ffn


def expert(gate: Tensor, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    inner = (gate @ x).clamp(max=LIMIT)
    return down @ (inner / (1 + (-inner).exp()) * (up @ x).clamp(-LIMIT, LIMIT))


def expected(t: Tensors, x: Tensor, chosen: list[int]) -> Tensor:
    """The output for one token, (d_model,)."""
    scores = (1 + (t["router.weight"] @ x).exp()).log().sqrt()
    total = sum(scores[e] for e in chosen)
    shared = (t[f"shared.{p}_proj.weight"] for p in ("gate", "up", "down"))
    y = expert(*shared, x)
    for e in chosen:
        maps = (t[f"experts.{p}_proj.weight"][e] for p in ("gate", "up", "down"))
        y = y + 1.5 * scores[e] / total * expert(*maps, x)
    return y


@torch.no_grad()
def test_the_ids_choose() -> None:
    ffn, x = network(), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    ids = torch.randint(VOCAB, (2, 9))
    found, t = ffn(x, ids=ids), dict(ffn.named_parameters())
    for row, at in ((row, at) for row in range(2) for at in range(9)):
        chosen = ffn.router.experts_of_ids[ids[row, at]].tolist()
        one = expected(t, x[row, at], chosen)
        torch.testing.assert_close(found[row, at], one, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_same_by_scores() -> None:
    """`moe` with these scores and experts chooses the best, with the same weights."""
    ffn, x = network(kind="moe"), torch.randn(20, WIDTH, dtype=torch.float64)
    t = dict(ffn.named_parameters())
    for token, found in zip(x, ffn(x), strict=True):
        scores = t["router.weight"] @ token
        best = scores.argsort(descending=True)[:TOP_K].tolist()
        torch.testing.assert_close(found, expected(t, token, best), rtol=1e-12, atol=1e-12)


def test_a_score_that_is_rounded_to_0_has_a_slope() -> None:
    ffn = zoo.build(SPEC).get_submodule("decoder.layers.0.ffn")
    x = torch.full((1, WIDTH), 1e3, requires_grad=True)
    with torch.no_grad():
        ffn.router.weight.fill_(-1.0)
    ffn(x, ids=torch.tensor([4])).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_ids_are_assigned_in_turn() -> None:
    """So that all experts of a new model have equally many, and a token has different ones."""
    model = zoo.build(SPEC)
    table = model.get_buffer("decoder.layers.1.ffn.router.experts_of_ids")
    assert table.dtype == torch.int64
    assert table.tolist() == [
        [(TOP_K * i + c) % N_EXPERTS for c in range(TOP_K)] for i in range(VOCAB)
    ]
    assert table.flatten().bincount().max() - table.flatten().bincount().min() <= 1
    assert "experts_of_ids" not in str([name for name, _ in model.named_parameters()])


@torch.no_grad()
def test_padding_is_left_out_of_what_the_experts_compute() -> None:
    model = randomize(zoo.build(SPEC, dtype=torch.float64).eval(), seed=2)
    ids = torch.randint(VOCAB, (3, 40))
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[1, :25] = mask[2, 9:] = False
    seen: list[int] = []
    ffn = model.get_submodule("decoder.layers.0.ffn")
    plain = ffn.mixed
    ffn.mixed = lambda tokens, *rest: (seen.append(len(tokens)), plain(tokens, *rest))[1]
    found = model(ids, target_mask=mask)
    assert seen == [int(mask.sum())]
    assert model.get_submodule("decoder.layers.0.ffn").mixed is not None
    alone = model(ids[2:, :9])
    torch.testing.assert_close(found[2:, :9], alone, rtol=1e-12, atol=1e-12)


def test_ids_are_needed() -> None:
    with pytest.raises(ValueError, match="chosen by the `ids` of the tokens, which are missing"):
        network()(torch.randn(2, WIDTH, dtype=torch.float64))


IMAGE: dict[str, Any] = {
    "embedding": {"kind": "patches", "image_size": 6, "patch_size": 2},
    "position": {"kind": "learned", "max_length": 10},
    "ffn": {"kind": "mlp", "d_ff": 8},
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "vectors": (
        {"builder": "encoder", "embedding": {"kind": "vectors"}, "head": "none"},
        "a layer reads the ids of the tokens, and this stack is called with vectors",
    ),
    "images": (
        {"builder": "encoder", "embedding": IMAGE["embedding"], "vocab": None, "head": "none"},
        "vocab",
    ),
    "images among texts": (
        {"builder": "image_text_decoder", "image_id": 9, "image": IMAGE},
        "a layer of the decoder reads the ids of the tokens, and images have none",
    ),
    "images among texts, and one such layer": (
        {
            "builder": "image_text_decoder",
            "image_id": 9,
            "image": IMAGE,
            "decoder": {"layers": [{"at": [1], "ffn": {"kind": "mlp", "d_ff": 8}}]},
        },
        "a layer of the decoder reads the ids of the tokens, and images have none",
    ),
    "a choice": (
        {"ffn": FFN | {"router": {"correction_bias": True}}},
        "unknown key `correction_bias`",
    ),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_wrong(values: dict[str, Any], message: str) -> None:
    spec = {k: v for k, v in (SPEC | values).items() if v is not None}
    with pytest.raises(SpecError) as error:
        zoo.read_spec(spec, registry=load_registry())
    assert message in str(error.value)
