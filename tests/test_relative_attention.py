"""Attention to distances, and attention whose input is rotated, against their formulas, for one
query, one head and one key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references.attention import Turn, Weights, linear, may_attend, one_query
from references.attention_cases import LENGTH, SMALL_DECODER, check_equal, randn, some_mask
from torch import Tensor

import zoo
from zoo.errors import SpecError
from zoo_components.norm import NoNorm
from zoo_components.relative_attention import Relative, RelativeKeys
from zoo_components.self_attention import RotatedInput, SelfAttention

WIDTH, N_HEADS = 8, 2
HEAD = WIDTH // N_HEADS
Score = Callable[[Any, Weights, Tensor, Tensor, int, int, int, Turn], Tensor]
"""The score of a query for a key in one head, times sqrt(head_dim): of the description, its
tensors, the two vectors of the input, their places, the number of the head and the rotation."""


def described(cls: type[SelfAttention], **fields: Any) -> SelfAttention:
    norm = NoNorm(kind="none", width=WIDTH)
    return cls(kind="own", norm=norm, d_model=WIDTH, n_heads=N_HEADS, **fields)


def part(w: Weights, name: str, x: Tensor, head: int) -> Tensor:
    return linear(w, f"{name}_proj", x).reshape(N_HEADS, HEAD)[head]


def sinusoids(distance: int, base: float) -> Tensor:
    """Those of Vaswani et al. (2017, section 3.5), a sine and a cosine of each angle in turn."""
    angles = [distance / base ** (2 * k / WIDTH) for k in range(WIDTH // 2)]
    pairs = [(math.sin(angle), math.cos(angle)) for angle in angles]
    return torch.tensor(pairs, dtype=torch.float64).flatten()


def relative(
    a: Any, w: Weights, x: Tensor, y: Tensor, i: int, j: int, h: int, turn: Turn
) -> Tensor:
    """Equation in section 3.3 of Dai et al. (2019), whose u and v are the biases of content and of
    position."""
    q, k = part(w, "q", x, h), part(w, "k", y, h)
    r = part(w, "distance", sinusoids(i - j, a.distance_base), h)
    content = turn(q + w["content_bias"][h], i) @ turn(k, j)
    return content + (q + w["position_bias"][h]) @ r


def relative_keys(
    a: Any, w: Weights, x: Tensor, y: Tensor, i: int, j: int, h: int, turn: Turn
) -> Tensor:
    """Equation 4 of Shaw et al. (2018), with a clip on each side."""
    row = min(max(j - i, -a.max_before), a.max_after) + a.max_before
    q, k = part(w, "q", x, h), part(w, "k", y, h)
    return turn(q, i) @ turn(k, j) + q @ w["distances.weight"][row]


def rotated_input(
    a: Any, w: Weights, x: Tensor, y: Tensor, i: int, j: int, h: int, turn: Turn
) -> Tensor:
    x = torch.cat([turn(one, i) for one in x.reshape(N_HEADS, HEAD)])
    y = torch.cat([turn(one, j) for one in y.reshape(N_HEADS, HEAD)])
    return part(w, "q", x, h) @ part(w, "k", y, h)


def attending(score: Score) -> Callable[..., Tensor]:
    def attend(
        a: Any,
        w: Weights,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        turn: Turn | None = None,
        bias: Tensor | None = None,
        positions: list[int] | None = None,
    ) -> Tensor:
        at = positions or list(range(x.shape[1]))
        rotate = turn or (lambda head, _: head)
        allowed = may_attend(N_HEADS, x, x, mask, causal=False)
        outputs = []
        for b, rows in enumerate(x):
            for i, row in enumerate(rows):
                heads = []
                for h in range(N_HEADS):
                    logits = {}
                    for j, other in enumerate(rows):
                        if allowed[b, h, i, j]:
                            made = score(a, w, row, other, at[i], at[j], h, rotate) / HEAD**0.5
                            logits[j] = made if bias is None else made + bias[h, i, j]
                    values = torch.stack([part(w, "v", other, h) for other in rows])
                    heads.append(one_query(logits, values, sink=None, uniform=False)[0])
                outputs.append(linear(w, "o_proj", torch.cat(heads)))
        return torch.stack(outputs).reshape(x.shape)

    return attend


@pytest.mark.parametrize(
    ("cls", "score", "fields"),
    [
        (Relative, relative, {}),
        (Relative, relative, {"distance_base": 50.0, "bias": ("v",)}),
        (RelativeKeys, relative_keys, {}),
        (RelativeKeys, relative_keys, {"max_before": 2, "max_after": 1}),
        (RelativeKeys, relative_keys, {"max_before": 0, "max_after": 3}),
        (RotatedInput, rotated_input, {}),
    ],
)
def test_the_formula(cls: type[SelfAttention], score: Score, fields: dict[str, Any]) -> None:
    description, x = described(cls, **fields), randn(2, LENGTH, WIDTH)
    statement = attending(score)
    check_equal(description, statement, [x])
    check_equal(description, statement, [x], turned=True)
    bias = randn(N_HEADS, LENGTH, LENGTH, seed=5)
    check_equal(description, statement, [x], bias=bias, mask=some_mask(2, 1, LENGTH, LENGTH))
    # Some models count padding as -1.
    check_equal(description, statement, [x], positions=[-1, -1, 0, 1, 2], turned=True)


@pytest.mark.parametrize("kind", ["relative", "relative_keys", "rotated_input"])
def test_what_they_are_not_for(kind: str) -> None:
    spec = SMALL_DECODER | {"attention": kind, "position": "rotary"}
    zoo.read_spec(spec)
    with pytest.raises(SpecError, match="choose another kind for `cross_attn`"):
        zoo.read_spec(spec | {"memory_width": 5})
    with pytest.raises(SpecError, match="d_model = 16 is not divisible by n_heads = 6"):
        zoo.read_spec(spec | {"n_heads": 6})


def test_rotated_input_needs_rotary_positions() -> None:
    with pytest.raises(SpecError, match="is about rotary positions, and no layer"):
        zoo.read_spec(SMALL_DECODER | {"attention": "rotated_input", "position": "alibi"})
