"""`sparse_latent` against a reference for one query, one head and one key at a time."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from references import attention as reference
from references.attention_cases import (
    LENGTH,
    check_equal,
    described_latent,
    described_shared_sparse_latent,
    described_sparse_latent,
    layer_norm,
    made,
    randn,
    rotation,
    some_mask,
)
from torch import Tensor

import zoo
from zoo.context import SharedKeys
from zoo.errors import SpecError
from zoo.showing.show import summary_data, summary_text
from zoo_components.norm import NoNorm

FEATURES: dict[str, dict[str, Any]] = {
    "queries of the input": {},
    "latent queries": {"q_lora_rank": 4, "bias": True},
    "one key": {"index_topk": 1},
    "more keys than there are": {"index_topk": 64},
    "one head": {"index_n_heads": 1, "n_heads": 1},
    "no norm": {"index_norm": NoNorm(kind="none", width=6)},
    "eps": {"index_norm": layer_norm(6)},
    "all is rotated": {"index_head_dim": 4},
    "halves": {"index_halves": "interleaved"},
    "temperature": {"q_temperature": "log", "q_temperature_floor": 2.0},
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_feature(fields: dict[str, Any], causal: bool) -> None:
    description = described_sparse_latent(**fields)
    x = randn(2, LENGTH, 6)
    check_equal(description, reference.sparse_latent, [x], turned=True, causal=causal)
    mask = some_mask(2, 1, LENGTH, LENGTH)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    check_equal(description, reference.sparse_latent, [x], causal=causal, mask=mask, bias=bias)


def test_heads_that_see_other_keys_choose_among_those() -> None:
    mask = some_mask(2, 3, LENGTH, LENGTH)
    check_equal(
        described_sparse_latent(), reference.sparse_latent, [randn(2, LENGTH, 6)], mask=mask
    )


@pytest.mark.parametrize("return_weights", [False, True])
def test_with_as_many_keys_as_there_are_it_is_latent(return_weights: bool) -> None:
    sparse, latent = made(described_sparse_latent(index_topk=LENGTH)), made(described_latent())
    latent.load_state_dict({k: t for k, t in sparse.state_dict().items() if "indexer" not in k})
    x, mask = randn(2, LENGTH, 6), some_mask(2, 1, LENGTH, LENGTH)
    for options in ({}, {"causal": True}, {"mask": mask}, {"causal": True, "mask": mask}):
        found = sparse(x, return_weights=return_weights, **options)
        expected = latent(x, return_weights=return_weights, **options)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_of_equal_scores_the_first_keys_are_chosen() -> None:
    """So that what comes later does not matter, as when tokens are computed with a cache."""
    module = made(described_sparse_latent(index_topk=2))
    module.indexer.weights_proj.weight.data.zero_()
    _, weights = module(randn(1, LENGTH, 6), causal=True, return_weights=True)
    chosen = (weights > 0).any(-3)[0]
    assert chosen.tolist() == [[j < min(i + 1, 2) for j in range(LENGTH)] for i in range(LENGTH)]


def test_scores_are_in_float32_at_least() -> None:
    x = randn(1, LENGTH, 6).bfloat16()
    indexer = made(described_sparse_latent(), torch.bfloat16).indexer
    assert indexer(x, x, indexer.keys(x, None), None).dtype == torch.float32
    assert (
        indexer.double()(x.double(), x.double(), x.double()[:, None], None).dtype == torch.float64
    )


# --- layers that attend to what an earlier one chose ----------------------------------------------


@pytest.mark.parametrize("topk", [2, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_a_later_layer_attends_to_what_an_earlier_one_chose(causal: bool, topk: int) -> None:
    first, later = described_sparse_latent(index_topk=topk), described_shared_sparse_latent()
    choosing, attending, keys = made(first), made(later), SharedKeys()
    x, states = randn(2, LENGTH, 6), randn(2, LENGTH, 6, seed=9)
    mask = some_mask(2, 1, LENGTH, LENGTH)
    with pytest.raises(ValueError, match="has not put its choice here"):
        attending(states, keys=keys)
    with pytest.raises(ValueError, match="needs the `keys` that another layer chose"):
        attending(states)
    choosing(x, mask=mask, causal=causal, keys=keys)
    found, _ = attending(states, mask=mask, causal=causal, keys=keys)
    tensors = dict(choosing.named_parameters())
    chosen = reference.chosen_keys(first, tensors, x, mask=mask, causal=causal)
    expected = reference.latent(later, dict(attending.named_parameters()), states, mask=chosen)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_each_layer_gets_the_choice_of_the_last_one_before_it() -> None:
    model = zoo.build(sharing(5, [1, 3, 4]), dtype=torch.float64)
    attentions = [layer.self_attn for layer in model.decoder.layers]
    given = []
    for attention in attentions:
        attention.register_forward_pre_hook(
            lambda _, __, options: given.append(options["keys"]), with_kwargs=True
        )
    model(torch.arange(12)[None])
    assert [given.index(keys) for keys in given] == [0, 0, 2, 2, 2]
    assert "keys of layers 0, 2" in summary_text(summary_data(model.spec))


def test_there_is_a_layer_that_chooses() -> None:
    with pytest.raises(SpecError, match="layer 0 attends to the keys that a layer before it chose"):
        zoo.read_spec(sharing(2, [0]))


# --- the loss of the indexer --------------------------------------------------------------------


def expected_loss(module: Any, x: Tensor, counted: list[tuple[int, int]], topk: int) -> Tensor:
    """KL(p || q) for one query at a time, of a causal stack, in the mean of the counted ones."""
    tensors = dict(module.named_parameters())
    scores = reference.index_scores(described_sparse_latent(), tensors, x)
    evaluated = deepcopy(module).eval()
    _, weights = evaluated(x, causal=True, return_weights=True)
    losses = []
    for b, i in counted:
        order = sorted(range(i + 1), key=lambda j: -scores[b][i][j].item())[:topk]
        q = torch.stack([scores[b][i][j] for j in order]).softmax(0)
        p = weights[b, :, i, order].detach().sum(0) / len(weights[b])
        losses.append((p * (p / q).log()).sum())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("topk", [2, 64])
def test_the_indexer_learns_the_weights_of_all_heads(topk: int) -> None:
    module = made(described_sparse_latent(index_topk=topk, auxiliary_loss=0.25)).train()
    x = randn(2, LENGTH, 6)
    every = [(b, i) for b in range(2) for i in range(LENGTH)]
    expected = 0.25 * expected_loss(module, x, every, topk)
    output, weights = module(x, causal=True)
    assert weights is None
    torch.testing.assert_close(zoo.auxiliary_loss(module), expected, rtol=1e-12, atol=0)
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(
        module.auxiliary_loss, [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    theirs = torch.autograd.grad(
        expected, [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    for name, one, other in zip(parameters, found, theirs, strict=True):
        if name.startswith("indexer."):  # the input of the indexer is detached
            assert other.any()
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        else:
            assert not one.any()
    of_output = torch.autograd.grad(
        output.sum(), [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    reached = [name for name, one in zip(parameters, of_output, strict=True) if one.any()]
    assert sorted(reached) == [n for n in sorted(parameters) if not n.startswith("indexer.")]


def test_padding_has_no_part_in_the_loss() -> None:
    module, x = made(described_sparse_latent()).train(), randn(2, LENGTH, 6)
    seen = torch.ones(2, 1, 1, LENGTH, dtype=torch.bool)
    seen[0, ..., -2:] = False
    module(x, causal=True, mask=seen)
    counted = [(b, i) for b in range(2) for i in range(LENGTH - (2 if b == 0 else 0))]
    expected = expected_loss(module, x, counted, 2)
    torch.testing.assert_close(module.auxiliary_loss, expected, rtol=1e-12, atol=0)
    module(x, causal=True, mask=torch.zeros_like(seen))
    assert module.auxiliary_loss.item() == 0.0


def test_without_the_coefficient_there_is_no_loss() -> None:
    module = made(described_sparse_latent(auxiliary_loss=0.0)).train()
    module(randn(2, LENGTH, 6), causal=True)
    assert module.auxiliary_loss is None
    module = made(described_sparse_latent())
    module(randn(2, LENGTH, 6), causal=True)
    assert module.auxiliary_loss is None


# --- what is described ---------------------------------------------------------------------------

SPEC: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "builder": "decoder",
    "vocab": 20,
    "n_layers": 2,
    "d_model": 64,
    "n_heads": 4,
    "d_ff": 96,
    "position": {"kind": "rotary", "pairs": "interleaved"},
}
ATTENTION: dict[str, Any] = {
    "kind": "sparse_latent",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "index_n_heads": 3,
    "index_head_dim": 10,
    "index_topk": 8,
}


def sharing(n_layers: int, at: list[int]) -> dict[str, Any]:
    """A decoder in which these layers have no indexer."""
    own = {key: value for key, value in ATTENTION.items() if "index" not in key}
    rule = {"at": at, "self_attn": own | {"kind": "shared_sparse_latent"}}
    layers = {"decoder": {"layers": [rule]}}
    return {**SPEC, "n_layers": n_layers, "attention": ATTENTION, **layers}


def test_flops() -> None:
    """Where a query may not attend to all keys, the indexer reads all: three maps, a product for
    each head and key, and the weighted sum over heads."""
    t = 24
    sparse, latent = (
        zoo.flops({**SPEC, "attention": attention}, t)["forward"]
        for attention in (
            ATTENTION,
            {k: v for k, v in ATTENTION.items() if "index" not in k} | {"kind": "latent"},
        )
    )
    maps = 2 * t * (24 * 3 * 10 + 64 * 10 + 64 * 3)
    indexer = maps + 2 * t * t * 3 * 10 + 2 * t * t * 3
    assert sparse - latent == 2 * indexer
    assert zoo.flops(sharing(2, [1]), t)["forward"] - latent == indexer


def test_what_deepseek_v3_2_keeps_and_has() -> None:
    """Per token and layer, 512 + 64 numbers and a key of 128; 13,959,424 weights of an indexer."""
    description = described_sparse_latent(
        d_model=7168,
        n_heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        index_n_heads=64,
        index_head_dim=128,
        index_topk=2048,
    )
    layout = description.layout()
    assert layout.cache == 512 + 64 + 128
    indexer = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64
    assert layout.parts["indexer"].n_parameters == indexer == 13_959_424


@pytest.mark.parametrize(
    ("changes", "around", "message"),
    [
        ({"index_head_dim": 3}, {}, "which index_head_dim = 3 does not have"),
        (
            {"index_halves": "interleaved", "qk_rope_head_dim": 3},
            {"position": "none"},
            "qk_rope_head_dim = 3 has no two halves to interleave",
        ),
        (
            {"index_halves": "interleaved"},
            {"position": "none"},
            "`index_halves` is about rotary positions",
        ),
        (
            {},
            {"memory_width": 4},
            "`sparse_latent` is about one sequence, and cannot attend to another",
        ),
    ],
)
def test_refused(changes: dict[str, Any], around: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        zoo.read_spec({**SPEC, **around, "attention": ATTENTION | changes})


def test_interleaved_halves_are_turned_as_halves() -> None:
    """Beside positions that turn halves, the same model needs no halves interleaved."""
    halves = made(described_sparse_latent(index_halves="interleaved")).indexer
    x = randn(1, LENGTH, 6)
    at = torch.arange(LENGTH)

    def turn_halves(heads: Tensor) -> Tensor:
        pairs = heads.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        return rotation(at)(pairs).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

    found = halves(x, x, halves.keys(x, rotation(at)), rotation(at))
    halves.interleaved = False
    expected = halves(x, x, halves.keys(x, turn_halves), turn_halves)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert (found - halves(x, x, halves.keys(x, None), None)).abs().max() > 1e-3
