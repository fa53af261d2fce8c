"""`linear` attention against the formulas of its paper (Katharopoulos et al. 2020,
arXiv:2006.16236), for all pairs of tokens and token by token, and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_values import add_noise
from references import attention as reference
from references.attention_cases import (
    LENGTH,
    SMALL_DECODER,
    check_equal,
    chunks_of,
    described_linear,
    made,
    randn,
    some_mask,
)
from torch.nn.functional import elu

import zoo
from zoo.cache import AttentionCache, Cache, Past
from zoo.errors import SpecError
from zoo.reports.flops import flops
from zoo.showing.show import summary_data, summary_text
from zoo_components.modules import linear_attention as module_of

SPEC = SMALL_DECODER | {"attention": "linear"}
chunk = chunks_of(module_of)

PADDING = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None]
PADDING_OF_MEMORY = torch.tensor([[1, 0, 1, 1, 1, 0, 0], [0] * 7]).bool()[:, None, None]
"""With a query, or a row, that sees nothing."""


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"bias": ("q", "v")}, {"bias": ()}, {"n_heads": 1}, {"head_dim": 7}]
)
def test_the_formula(fields: dict[str, Any], causal: bool) -> None:
    """With and without masks: the same for all queries, and one for each."""
    description = described_linear(**fields)
    x = randn(2, LENGTH, 6)
    for mask in (None, PADDING, some_mask(2, 1, LENGTH, LENGTH)):
        check_equal(description, reference.linear_attention, [x], causal=causal, mask=mask)
    by_head = some_mask(2, description.n_heads, LENGTH, LENGTH)
    check_equal(description, reference.linear_attention, [x], causal=causal, mask=by_head)


def test_memory() -> None:
    description = described_linear(key_width=4)
    inputs = [randn(2, LENGTH, 6), randn(2, 7, 4, seed=8)]
    for mask in (None, PADDING_OF_MEMORY, some_mask(2, 1, LENGTH, 7)):
        check_equal(description, reference.linear_attention, inputs, mask=mask)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 150])
def test_parallel_is_recurrent(length: int) -> None:
    """In float64, all tokens at once give what the recurrence of the paper gives (equations 16 to
    20), and so does the module token by token."""
    module, x = made(described_linear()), randn(2, length, 6)
    at_once, _ = module(x, causal=True)
    by_pairs, weights = module(x, causal=True, return_weights=True)
    cache = Cache(length).layer(0).of("self_attn")
    one_by_one = torch.cat([module(t, causal=True, cache=cache)[0] for t in x.split(1, 1)], 1)
    q, k, v = (
        getattr(module, f"{name}_proj")(x).view(2, length, 3, 4).transpose(1, 2) for name in "qkv"
    )
    s, z = torch.zeros(2, 3, 4, 4).double(), torch.zeros(2, 3, 4).double()
    steps = []
    for i in range(length):
        phi_q, phi_k = elu(q[:, :, i]) + 1, elu(k[:, :, i]) + 1
        s = s + phi_k[..., :, None] * v[:, :, i, None, :]
        z = z + phi_k
        above = (phi_q[..., None, :] @ s)[..., 0, :]
        steps.append(above / (phi_q * z).sum(-1, keepdim=True))
    expected = module.o_proj(torch.stack(steps, 1).flatten(2))
    for found in (at_once, by_pairs, one_by_one):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, length).double())
    assert not weights.triu(1).any()


def test_what_is_far_below_zero_is_not_lost() -> None:
    """exp(x) - 1 + 1 is 0 in float32 for x < -17, and a divisor of 0 would follow."""
    x = torch.tensor([-60.0, -30.0, -1.0, 0.0, 2.0], requires_grad=True)
    found = module_of._features(x)
    expected = torch.where(x > 0, x.double() + 1, x.double().exp())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    torch.testing.assert_close(x.grad[-1], torch.tensor(1.0))
    torch.testing.assert_close(x.grad[:3].double(), expected[:3].detach(), rtol=1e-6, atol=0)


def test_a_state_is_in_float32_at_least() -> None:
    """In bfloat16, 1 + 1 + ... would stop at 256."""
    kept = AttentionCache(Past(1))
    kept.keep_state(torch.zeros(1, 1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.long))
    for _ in range(1000):
        assert kept.state is not None
        total, count = kept.state
        kept.keep_state(total + torch.ones(1, dtype=torch.bfloat16), count + 1)
    assert [t.item() for t in kept.state or ()] == [1000.0, 1000]
    assert [t.dtype for t in kept.state or ()] == [torch.float32, torch.long]
    kept.keep_state(torch.zeros(1, dtype=torch.float64))
    assert [t.dtype for t in kept.state or ()] == [torch.float64]


def test_beams_reorder_the_state() -> None:
    """Beam search with a cache finds what it finds without one, for prompts of several lengths."""
    model = add_noise(zoo.build(SPEC, dtype=torch.float64))
    prompts = [[3, 7, 4, 9, 2], [8], [5, 5, 6]]
    found, anew = (
        zoo.generate(model, prompts, max_new_tokens=8, method=zoo.Beam(size=3), cache=cache)
        for cache in (True, False)
    )
    assert [one.ids for one in found] == [one.ids for one in anew]
    assert [one.score for one in found] == pytest.approx([o.score for o in anew], abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_is_what_show_says(dtype: torch.dtype) -> None:
    """Whatever the length. The memory of the cache is measured."""
    spec = zoo.read_spec({**SPEC, "decoder": {"layers": [{"at": [1], "attention": "multi_head"}]}})
    data = summary_data(spec)
    state = 2 * 4 * 4 * (4 + 1) * 4  # of two layers, four heads of width 4, float32
    assert data["state_bytes_per_sequence"] == state
    assert f"state       {state} B float32 per sequence" in summary_text(data)
    per_token = data["kv_cache_bytes_per_token"][str(dtype).removeprefix("torch.")]
    model = zoo.build(spec, dtype=dtype).eval()
    for n_tokens in (1, 5, 100):
        cache = Cache(n_tokens)
        model.decode(torch.ones(1, n_tokens, dtype=torch.long), cache=cache)
        assert cache.n_bytes == state + n_tokens * per_token
    encoder = zoo.read_spec({**SPEC, "builder": "encoder"})
    assert summary_data(encoder)["state_bytes_per_sequence"] == 0


def test_the_operations_grow_with_the_length() -> None:
    """Chunk by chunk: so many pairs, and a state that is added to and read."""
    spec = zoo.read_spec({**SPEC, "vocab": 40})
    short, long = (flops(spec, n)["forward"] for n in (640, 1280))
    assert long == 2 * short
    (decoder, *_) = flops(spec, 640)["parts"]
    (layers,) = [part for part in decoder["parts"] if part["name"] == "layers"]
    (attention,) = [part for part in layers["parts"] if part["name"] == "self_attn"]
    maps = 4 * 16 * 16
    chunks = 64 * 4 + 64 * 5 + 2 * 4 * 5  # of one head and token: q k^T, times v, and the state
    assert attention["flops"] == 2 * 3 * 640 * (maps + 4 * chunks)


@pytest.mark.parametrize(("position", "gives"), [("rotary", "rotation"), ("alibi", "takes none")])
def test_positions_that_it_cannot_take(position: str, gives: str) -> None:
    with pytest.raises(SpecError, match=gives):
        zoo.read_spec({**SPEC, "position": position})


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(SpecError, match="d_model = 16 is not divisible by n_heads = 3"):
        zoo.read_spec({**SPEC, "n_heads": 3})


def test_a_state_has_no_single_tokens() -> None:
    """Weights and masks of each query need them."""
    module, x = made(described_linear()), randn(2, LENGTH, 6)
    cache = Cache(LENGTH).layer(0).of("self_attn")
    for options in ({"return_weights": True}, {"mask": some_mask(2, 1, LENGTH, LENGTH)}):
        with pytest.raises(ValueError, match="no single earlier tokens"):
            module(x, causal=True, cache=cache, **options)
