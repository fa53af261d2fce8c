"""`forgetting` attention against its formula (Lin et al. 2025, arXiv:2503.02130, section 3), for
one query, one head and one key at a time."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from references.attention import Turn, Weights, linear, may_attend, one_query
from references.attention_cases import LENGTH, SMALL_DECODER, check_equal, made, randn, some_mask
from torch import Tensor

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo.showing.show import summary_data
from zoo_components.forgetting import Forgetting
from zoo_components.modules.forgetting import log_decay
from zoo_components.norm import NoNorm

WIDTH = 6
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "forgetting", "n_kv_heads": 2},
}
PADDING = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None]


def described(**fields: Any) -> Forgetting:
    stated = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4} | fields
    return Forgetting(
        kind="forgetting", norm=NoNorm(kind="none", width=WIDTH), d_model=WIDTH, **stated
    )


def forgetting(
    a: Forgetting,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """The weight of a key is divided by the gates of all tokens after it that the query sees."""
    rotate = turn or (lambda head, _: head)
    allowed = may_attend(a.n_heads, x, x, mask, causal=True)
    outputs = []
    for b, rows in enumerate(x):
        keys = [linear(w, "k_proj", row).reshape(a.n_kv_heads, -1) for row in rows]
        values = [linear(w, "v_proj", row).reshape(a.n_kv_heads, -1) for row in rows]
        gates = [1 / (1 + torch.exp(-linear(w, "forget_proj", row))) for row in rows]
        for i, row in enumerate(rows):
            q = linear(w, "q_proj", row).reshape(a.n_heads, -1)
            heads = []
            for h in range(a.n_heads):
                served = h * a.n_kv_heads // a.n_heads
                seen = [j for j in range(len(rows)) if allowed[b, h, i, j]]
                logits = {}
                for j in seen:
                    left = prod(gates[later][h] for later in seen if later > j)
                    score = rotate(q[h], i) @ rotate(keys[j][served], j) * a.scale
                    score = score if bias is None else score + bias[h, i, j]
                    logits[j] = score + torch.log(torch.as_tensor(left))
                of_head = torch.stack([value[served] for value in values])
                heads.append(one_query(logits, of_head, sink=None, uniform=False)[0])
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), x.shape[1], -1)


@pytest.mark.parametrize(
    "fields", [{}, {"n_kv_heads": 1}, {"n_kv_heads": 4, "bias": ("q", "v")}, {"scale": 1.3}]
)
def test_the_formula(fields: dict[str, Any]) -> None:
    """With and without masks: the same for all queries and heads, and one for each."""
    description, x = described(**fields), randn(2, LENGTH, WIDTH)
    check_equal(description, forgetting, [x], turned=True)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    by_query = some_mask(2, 1, LENGTH, LENGTH)
    by_head = some_mask(2, description.n_heads, LENGTH, LENGTH)
    for mask in (PADDING, by_query, by_head):
        check_equal(description, forgetting, [x], mask=mask, bias=bias)


@torch.no_grad()
def test_texts_in_one_row_are_computed_as_alone() -> None:
    """What a mask hides between two texts that are packed into a row is no distance."""
    module, x = made(described()), randn(1, 7, WIDTH)
    text = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    packed, _ = module(x, mask=(text[:, None] == text)[None, None])
    alone = torch.cat([module(part)[0] for part in x.split([3, 4], 1)], 1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


def test_decays_are_sums_from_the_key_on() -> None:
    """Not only up to a number for each query, by which no weight would change: near keys are then
    told apart in bfloat16, too, however much is forgotten. The sums are in float32."""
    gates = randn(3, 2000, seed=4).bfloat16()
    at = torch.tensor([1997, 1998, 1999])
    found = log_decay(gates, None, at)
    assert found.dtype == torch.float32
    kept = torch.sigmoid(gates.double()).log()
    expected = torch.stack([kept[:, 1991:].sum(-1), kept[:, 1992:].sum(-1), kept[:, 1999]], -1)
    torch.testing.assert_close(
        found[:, 2, [1990, 1991, 1998]].double(), expected, rtol=1e-3, atol=1e-3
    )
    assert not found[:, [0, 1, 2], at].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cache_is_what_show_says(dtype: torch.dtype) -> None:
    """Keys, values and a gate of each head, before its sigmoid and in the dtype of the model."""
    spec = zoo.read_spec(SPEC)
    per_token = 3 * (2 * 2 * 4 + 4)
    data = summary_data(spec)["kv_cache_bytes_per_token"]
    assert data == {"float32": 4 * per_token, "bfloat16": 2 * per_token}
    model, cache = zoo.build(spec, dtype=dtype).eval(), Cache(5)
    model.decode(torch.ones(1, 5, dtype=torch.long), cache=cache)
    assert cache.n_bytes == 5 * per_token * dtype.itemsize


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attention": {"kind": "forgetting", "n_kv_heads": 3}}, "divisible by n_kv_heads = 3"),
        ({"n_heads": 6}, "d_model = 16 is not divisible by n_heads = 6"),
        ({"builder": "encoder"}, "no token sees later ones in these layers"),
        ({"memory_width": 5}, "cannot attend to another: state it under `self_attn`"),
    ],
)
def test_what_it_is_not_for(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC | changes)
