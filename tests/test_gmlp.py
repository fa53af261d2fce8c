"""`gmlp` against its formula (Liu et al. 2021, arXiv:2105.08050), for one token and one gate at a
time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references.attention import Turn, Weights, linear, may_attend, named_norm
from references.attention_cases import (
    LENGTH,
    SMALL_DECODER,
    check_equal,
    layer_norm,
    made,
    randn,
    rms,
    some_mask,
)
from torch import Tensor

import zoo
from zoo.cache import Cache
from zoo.errors import InputError, SpecError
from zoo.reports.flops import flops
from zoo.showing.show import summary_data
from zoo_components.gmlp import Gmlp
from zoo_components.norm import NoNorm

WIDTH, HIDDEN, MOST = 6, 8, 9
SPEC = {key: value for key, value in SMALL_DECODER.items() if key != "n_heads"} | {
    "position": "none",
    "attention": {"kind": "gmlp", "max_length": MOST},
    "ffn": "none",
}
PADDING = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 1]]).bool()[:, None, None]


def described(**fields: Any) -> Gmlp:
    stated = {"d_ff": HIDDEN, "max_length": MOST, "gate_norm": layer_norm()} | fields
    return Gmlp(kind="gmlp", norm=NoNorm(kind="none", width=WIDTH), d_model=WIDTH, **stated)


def gmlp(
    a: Gmlp,
    w: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    turn: Turn | None = None,
    positions: list[int] | None = None,
) -> Tensor:
    length, half = x.shape[1], a.d_ff // 2
    at = list(range(length)) if positions is None else positions
    allowed = may_attend(1, x, x, mask, causal=causal)[:, 0]
    outputs = []
    for b, rows in enumerate(x):
        hidden = [linear(w, "up_proj", row) for row in rows]
        hidden = [y * (1 + torch.erf(y / math.sqrt(2))) / 2 for y in hidden]  # GELU
        normed = [named_norm(w, "gate_norm", a.gate_norm, y[half:]) for y in hidden]
        for i in range(length):
            gates = w["spatial_bias"][at[i]].expand(half)
            for j in range(length):
                if allowed[b, i, j]:
                    gates = gates + w["spatial_weight"][at[i], at[j]] * normed[j]
            outputs.append(linear(w, "down_proj", hidden[i][:half] * gates))
    return torch.stack(outputs).reshape(x.shape)


@pytest.mark.parametrize(
    "fields", [{}, {"bias": False}, {"gate_norm": rms()}, {"max_length": LENGTH}]
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_formula(fields: dict[str, Any], causal: bool) -> None:
    description, x = described(**fields), randn(2, LENGTH, WIDTH)
    check_equal(description, gmlp, [x], causal=causal)
    for mask in (PADDING, some_mask(2, 1, LENGTH, LENGTH)):
        check_equal(description, gmlp, [x], causal=causal, mask=mask)
    positions = [2, 0, 1, 4, 3]
    check_equal(description, gmlp, [x], causal=causal, positions=positions)


def test_at_the_start_tokens_are_not_mixed() -> None:
    """W is 0 and b is 1 (section 2.1), so that the layer is a feed-forward network."""
    model = zoo.build(SPEC, dtype=torch.float64).eval()
    module, x = model.decoder.layers[0].self_attn, randn(1, LENGTH, 16)
    w = dict(module.named_parameters())
    assert not w["spatial_weight"].any()
    hidden = torch.nn.functional.gelu(module.up_proj(x))
    expected = module.down_proj(hidden.chunk(2, -1)[0])
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)


def learned() -> Any:
    """A model in which tokens are mixed."""
    model = zoo.build(SPEC, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * randn(*parameter.shape)
    return model


@pytest.mark.parametrize("steps", [(1,) * 7, (3, 1, 3)])
def test_token_by_token(steps: tuple[int, ...]) -> None:
    model, ids, cache = learned(), torch.arange(14).view(2, 7) % 11, Cache(7)
    states = torch.cat([model.decode(part, cache=cache) for part in ids.split(steps, 1)], 1)
    torch.testing.assert_close(model.head(states), model(ids), rtol=0, atol=1e-12)
    assert cache.n_bytes == 7 * 2 * 3 * HIDDEN // 2 * 8  # tokens, rows, layers, gates, bytes


def test_a_prompt_in_a_batch_is_generated_from_as_alone() -> None:
    model, prompts = learned(), [[5, 9, 3], [7]]
    together = zoo.generate(model, prompts, max_new_tokens=4)
    alone = [zoo.generate(model, [prompt], max_new_tokens=4)[0] for prompt in prompts]
    assert [one.ids for one in together] == [one.ids for one in alone]


def test_longer_sequences_are_refused() -> None:
    model = learned()
    with pytest.raises(ValueError, match="10 tokens is longer than the layer's 9 positions"):
        model(torch.ones(1, MOST + 1, dtype=torch.long))
    assert model.spec.model.generation.longest == MOST
    with pytest.raises(InputError, match="9"):
        zoo.generate(model, [[1, 2, 3]], max_new_tokens=MOST)
    positions = {"kind": "learned", "max_length": 5}
    assert zoo.read_spec(SPEC | {"position": positions}).model.generation.longest == 5


def test_what_show_says() -> None:
    """The parameters, the cache and the operations, in closed form."""
    spec = zoo.read_spec(SPEC)
    half = HIDDEN // 2
    layer = 16 * HIDDEN + HIDDEN + 2 * half + MOST * MOST + MOST + half * 16 + 16 + 2 * 16
    assert spec.n_parameters == 11 * 16 + 3 * layer + 2 * 16 + 11 * 16
    assert summary_data(spec)["kv_cache_bytes_per_token"]["float32"] == 3 * half * 4
    products = 16 * HIDDEN + half * 16 + 7 * half
    assert flops(spec, 7)["forward"] == 7 * 2 * (3 * products + 16 * 11)


def test_masks_that_differ_by_head_are_refused() -> None:
    mask = torch.ones(2, 2, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(ValueError, match="takes no mask that differs by head"):
        made(described())(randn(2, LENGTH, WIDTH), mask=mask)


IMAGES = {"kind": "patches", "image_size": 8, "patch_size": 2}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"d_ff": 7}, "half of the hidden units gate the other half: d_ff is even, not 7"),
        ({"position": "alibi"}, "positions need a self-attention"),
        ({"memory_width": 5}, "cannot attend to another: state it under `self_attn`"),
        (
            {"builder": "encoder", "vocab": None, "head": "none", "embedding": IMAGES},
            "an input becomes 17 vectors, and an attention is for 9 at most",
        ),
    ],
)
def test_what_it_is_not_for(changes: dict[str, Any], told: str) -> None:
    data = {key: value for key, value in (SPEC | changes).items() if value is not None}
    with pytest.raises(SpecError, match=told):
        zoo.read_spec(data)
