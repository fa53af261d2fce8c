"""`gated_bias` attention against its formula (XLM-E: Chi et al. 2021, arXiv:2106.16138), for one
query, one head and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention import Turn, Weights, linear, may_attend, one_query
from references.attention_cases import LENGTH, SMALL_DECODER, check_equal, randn, some_mask
from torch import Tensor

import zoo
from zoo.errors import SpecError
from zoo_components.gated_bias import GatedBias
from zoo_components.norm import NoNorm

WIDTH, N_HEADS = 8, 2
SPEC = SMALL_DECODER | {"position": "t5_buckets", "attention": "gated_bias"}


def described(**fields: Any) -> GatedBias:
    norm = NoNorm(kind="none", width=WIDTH)
    return GatedBias(kind="gated_bias", norm=norm, d_model=WIDTH, n_heads=N_HEADS, **fields)


def gated(
    a: GatedBias,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    turn: Turn | None = None,
    bias: Tensor | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    """The two gates of a query and head are made of the head's part of the layer's input."""
    rotate = turn or (lambda head, _: head)
    allowed = may_attend(a.n_heads, x, x, mask, causal=False)
    outputs = []
    for b, rows in enumerate(x):
        keys = [linear(w, "k_proj", row).reshape(a.n_heads, -1) for row in rows]
        values = [linear(w, "v_proj", row).reshape(a.n_heads, -1) for row in rows]
        for i, row in enumerate(rows):
            q = linear(w, "q_proj", row).reshape(a.n_heads, -1)
            heads = []
            for h, part in enumerate(row.reshape(a.n_heads, -1)):
                made = linear(w, "gate_proj", part)
                update, reset = (1 / (1 + torch.exp(-m)) for m in (made[:4].sum(), made[4:].sum()))
                gate = 2 + update * (reset * w["gate_scale"][h] - 1)
                logits = {}
                for j in range(len(rows)):
                    score = rotate(q[h], i) @ rotate(keys[j][h], j) / (WIDTH // N_HEADS) ** 0.5
                    if allowed[b, h, i, j]:
                        logits[j] = score if bias is None else score + gate * bias[h, i, j]
                of_head = torch.stack([value[h] for value in values])
                heads.append(one_query(logits, of_head, sink=None, uniform=False)[0])
            outputs.append(linear(w, "o_proj", torch.cat(heads)))
    return torch.stack(outputs).reshape(len(x), x.shape[1], -1)


@pytest.mark.parametrize("fields", [{}, {"bias": ("q", "v")}])
def test_the_formula(fields: dict[str, Any]) -> None:
    description, x = described(**fields), randn(2, LENGTH, WIDTH)
    check_equal(description, gated, [x], turned=True)
    bias = randn(N_HEADS, LENGTH, LENGTH, seed=5)
    check_equal(description, gated, [x], bias=bias)
    check_equal(description, gated, [x], bias=bias, mask=some_mask(2, 1, LENGTH, LENGTH))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_heads": 6}, "d_model = 16 is not divisible by n_heads = 6"),
        ({"position": "rotary"}, "reads the table `rel_bias`, which no position scheme"),
        ({"position": "none"}, "reads the table `rel_bias`, which no position scheme"),
        ({"memory_width": 5}, "choose another kind for `cross_attn`"),
    ],
)
def test_what_it_is_not_for(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(SPEC | changes)
