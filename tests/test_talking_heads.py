"""`talking_heads` against its formula (Shazeer et al. 2020, arXiv:2003.02436), for one query, one
head and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention import Turn, Weights, linear, may_attend, one_query
from references.attention_cases import (
    LENGTH,
    SMALL_DECODER,
    check_equal,
    made,
    randn,
    some_mask,
)
from torch import Tensor

import zoo
from zoo.backends import attention_backend
from zoo.cache import Cache
from zoo.errors import InputError
from zoo.reports.flops import flops
from zoo_components.norm import NoNorm
from zoo_components.talking_heads import TalkingHeads

WIDTH = 6
SPEC = SMALL_DECODER | {"position": "rotary", "attention": "talking_heads"}


def described(**fields: Any) -> TalkingHeads:
    stated = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return TalkingHeads(kind="talking_heads", norm=norm, d_model=WIDTH, **stated)


def talking_heads(
    a: TalkingHeads,
    w: Weights,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """The scores of all heads become those of each, and its weights a part of those of all."""
    rotate = turn or (lambda head, _: head)
    source = x if memory is None else memory
    n_queries, n_keys, n = x.shape[1], source.shape[1], a.n_heads
    allowed = may_attend(n, x, source, mask, causal=causal)
    served = [h * a.n_kv_heads // n for h in range(n)]
    outputs = []
    for b, rows in enumerate(x):
        keys = [linear(w, "k_proj", row).reshape(a.n_kv_heads, -1) for row in source[b]]
        values = [linear(w, "v_proj", row).reshape(a.n_kv_heads, -1) for row in source[b]]
        eye = torch.eye(n_keys, dtype=torch.float64)
        for i, row in enumerate(rows):
            q = linear(w, "q_proj", row).reshape(n, -1)
            scores = [
                [rotate(q[h], i) @ rotate(keys[j][served[h]], j) * a.scale for j in range(n_keys)]
                for h in range(n)
            ]
            softmaxed = []
            for h in range(n):
                seen = [j for j in range(n_keys) if allowed[b, h, i, j]]
                logits = {
                    j: sum(w["scores_proj"][h, g] * scores[g][j] for g in range(n)) for j in seen
                }
                if bias is not None:
                    logits = {j: score + bias[h, i, j] for j, score in logits.items()}
                sink = w["sinks"][h] if a.sinks else None
                # With a unit vector for each key as its value, the output is the weights.
                softmaxed.append(one_query(logits, eye, sink=sink, uniform=False)[0])
            heads = []
            for h in range(n):
                weights = sum(w["weights_proj"][h, g] * softmaxed[g] for g in range(n))
                heads.append(sum(weights[j] * values[j][served[h]] for j in range(n_keys)))
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), n_queries, -1)


FIELDS: dict[str, dict[str, Any]] = {
    "shared keys": {},
    "one key head": {"n_kv_heads": 1},
    "as in the paper": {"n_kv_heads": 4, "bias": ()},
    "sinks and scale": {"sinks": True, "scale": 1.3},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_formula(fields: dict[str, Any], causal: bool) -> None:
    description, x = described(**fields), randn(2, LENGTH, WIDTH)
    check_equal(description, talking_heads, [x], turned=True, causal=causal)
    mask = some_mask(2, description.n_heads, LENGTH, LENGTH)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    check_equal(description, talking_heads, [x], causal=causal, mask=mask, bias=bias)


def test_memory_and_a_single_query() -> None:
    """Of one query, heads that share keys are no further queries of one head, as elsewhere."""
    memory, mask = randn(2, 7, 4, seed=8), some_mask(2, 1, LENGTH, 7)
    description = described(key_width=4)
    check_equal(description, talking_heads, [randn(2, LENGTH, WIDTH), memory], mask=mask)
    check_equal(description, talking_heads, [randn(2, 1, WIDTH), memory])


def test_with_identities_it_is_multi_head() -> None:
    module, x = made(described()), randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        module.scores_proj.copy_(torch.eye(4))
        module.weights_proj.copy_(torch.eye(4))
    found, weights = module(x, causal=True, return_weights=True)
    mix = super(type(module), module)._mix
    module._mix = mix
    expected, none = module(x, causal=True)
    assert none is None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, LENGTH).double())


@pytest.mark.parametrize("steps", [(1,) * LENGTH, (3, 2)])
def test_token_by_token(steps: tuple[int, ...]) -> None:
    model = zoo.build(SPEC | {"n_kv_heads": 2}, dtype=torch.float64).eval()
    ids = torch.arange(2 * LENGTH).view(2, LENGTH)
    cache = Cache(LENGTH)
    states = torch.cat([model.decode(part, cache=cache) for part in ids.split(steps, 1)], 1)
    torch.testing.assert_close(model.head(states), model(ids), rtol=0, atol=1e-12)


def test_what_show_says() -> None:
    """The parameters and the operations, in closed form."""
    spec, plain = (zoo.read_spec(SPEC | {"attention": k}) for k in ("talking_heads", "multi_head"))
    assert spec.n_parameters == plain.n_parameters + 3 * 2 * 4 * 4  # layers, maps, heads
    length, per_pair = 50, 2 * 2 * 4 * 4
    more = flops(spec, length)["forward"] - flops(plain, length)["forward"]
    assert more == 3 * per_pair * length * length


def test_fused_kernels_are_refused() -> None:
    model = zoo.build(SPEC)
    with attention_backend("flash"), pytest.raises(InputError, match="mix no heads"):
        model(torch.ones(1, 3, dtype=torch.long))
