"""Global tokens attend to all tokens, and all tokens attend to them, whatever the window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention_cases import HEAD, described, made, randn, rotation
from references.stacks import D_MODEL, LENGTH, VOCAB, spec
from torch import Tensor

import zoo

N = 7
GLOBAL = torch.tensor([[True, False, False, True, False, False, False], [False] * N])
OPTIONS: dict[str, dict[str, Any]] = {
    "two-sided": {"window": 1, "window_sides": "both"},
    "past": {"window": 2, "n_kv_heads": 4, "bias": False},
    "no window": {},
    "chunk": {"chunk": 3, "bias": ("v",)},
}


def stated(attention: Any, w: dict[str, Tensor], x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The reference, one query at a time."""
    weights = torch.zeros(len(x), attention.n_heads, N, N, dtype=torch.float64)
    mixed = torch.zeros(len(x), N, attention.n_heads, HEAD, dtype=torch.float64)
    for b in range(len(x)):
        for i in range(N):
            mine = bool(GLOBAL[b, i])
            keys = [
                j
                for j in range(N)
                if mask[b, j] and (mine or GLOBAL[b, j] or near(attention, i, j))
            ]
            prefix = "global_" if mine else ""
            q = heads(w, f"{prefix}q_proj", x[b, i], attention.n_heads)
            for h in range(attention.n_heads):
                kv = h * attention.n_kv_heads // attention.n_heads
                k, v = (
                    torch.stack(
                        [
                            heads(w, f"{prefix}{p}_proj", x[b, j], attention.n_kv_heads)[kv]
                            for j in keys
                        ]
                    )
                    for p in "kv"
                )
                share = (k @ q[h] / HEAD**0.5).softmax(-1)
                weights[b, h, i, keys], mixed[b, i, h] = share, share @ v
    return linear(w, "o_proj", mixed.flatten(2)), weights


def near(attention: Any, i: int, j: int) -> bool:
    if attention.chunk != "none":
        return i // attention.chunk == j // attention.chunk
    if attention.window == "none":
        return True
    both = attention.window_sides == "both"
    return abs(i - j) <= attention.window if both else i - j < attention.window


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))


def heads(w: dict[str, Tensor], name: str, x: Tensor, n: int) -> Tensor:
    return linear(w, name, x).reshape(n, HEAD)


@pytest.mark.parametrize("name", OPTIONS)
def test_what_attends_to_what(name: str) -> None:
    description = described(global_tokens=True, **OPTIONS[name])
    module, x = made(description), randn(2, N, 6)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[0, 5] = False
    expected, weights = stated(description, dict(module.named_parameters()), x, mask)
    for asked in (False, True):
        found, maps = module(
            x, mask=mask[:, None, None], global_tokens=GLOBAL, return_weights=asked
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(maps, weights, rtol=0, atol=1e-12)


def test_global_projections_are_treated_like_the_others() -> None:
    """With the same weights in both projections, a global token is a token without a window."""
    description = described(global_tokens=True, window=1, n_kv_heads=2, clip=0.4)
    module, x = made(description), randn(2, N, 6)
    for p in "qkv":
        module.get_submodule(f"global_{p}_proj").load_state_dict(
            module.get_submodule(f"{p}_proj").state_dict()
        )
    everyone = torch.ones(2, N, dtype=torch.bool)
    turn = rotation(torch.arange(N))
    free = made(described(n_kv_heads=2, clip=0.4))
    free.load_state_dict({n: t for n, t in module.state_dict().items() if "global" not in n})
    found, expected = module(x, rotation=turn, global_tokens=everyone)[0], free(x, rotation=turn)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


ASKED = {
    "attention": {
        "kind": "multi_head",
        "window": 1,
        "window_sides": "past",
        "global_tokens": True,
    }
}


def test_the_encoder_of_a_pair_takes_them() -> None:
    """As in LED."""
    encoder = {"self_attn": ASKED["attention"]}
    model = zoo.build(spec("encoder_decoder", encoder=encoder, head="linear")).eval()
    source, target = torch.randint(VOCAB, (2, LENGTH)), torch.randint(VOCAB, (2, 3))
    marked = torch.zeros(2, LENGTH, dtype=torch.bool)
    marked[:, 0] = True
    plain, found = model(source, target), model(source, target, global_tokens=marked)
    assert (plain - found).abs().max() > 1e-4
    memory = model.encode(source, global_tokens=marked)
    torch.testing.assert_close(model.head(model.decode(target, memory)), found)


def test_vectors_without_a_batch() -> None:
    model = zoo.build(spec(**ASKED, embedding="vectors")).eval()
    x, marked = torch.randn(LENGTH, D_MODEL), torch.arange(LENGTH) == 2
    batched = model(x[None], global_tokens=marked[None])[0]
    torch.testing.assert_close(model(x, global_tokens=marked), batched)


def test_the_first_token_is_global_if_a_call_names_none() -> None:
    asked = {"attention": {**ASKED["attention"], "global_tokens": "first"}}
    plain, first = zoo.build(spec(**ASKED)).eval(), zoo.build(spec(**asked)).eval()
    first.load_state_dict(plain.state_dict())
    ids = torch.randint(VOCAB, (2, LENGTH))
    marked = torch.zeros(2, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(first(ids, global_tokens=marked), plain(ids), rtol=0, atol=0)
    marked[:, 0] = True
    expected = plain(ids, global_tokens=marked)
    assert (expected - plain(ids)).abs().max() > 1e-4
    torch.testing.assert_close(first(ids), expected, rtol=0, atol=0)
    padded = torch.tensor([[True] * LENGTH, [True] * 2 + [False] * (LENGTH - 2)])
    expected = plain(ids, source_mask=padded, global_tokens=marked)
    torch.testing.assert_close(first(ids, source_mask=padded)[padded], expected[padded])


@pytest.mark.parametrize(
    ("fields", "tokens", "error"),
    [
        (ASKED, torch.zeros(2, LENGTH), TypeError),
        (ASKED, torch.zeros(2, LENGTH - 1).bool(), ValueError),
        ({}, torch.zeros(2, LENGTH).bool(), ValueError),
    ],
)
def test_what_cannot_be_global(fields: dict[str, Any], tokens: Tensor, error: type) -> None:
    model = zoo.build(spec(**fields))
    with pytest.raises(error, match="global"):
        model(torch.zeros(2, LENGTH).long(), global_tokens=tokens)


def test_a_causal_stack_has_none() -> None:
    with pytest.raises(zoo.SpecError, match=r"attention\.global_tokens: .*in an encoder alone"):
        zoo.read_spec(spec("decoder", **ASKED))


def test_cross_attention_has_none() -> None:
    cross = {"cross_attn": {"kind": "multi_head", "global_tokens": True}}
    with pytest.raises(zoo.SpecError, match="cross-attention sees another"):
        zoo.read_spec(spec("encoder_decoder", decoder=cross))


def test_nothing_is_kept_of_a_layer_that_has_them() -> None:
    """A decoder that is not causal may have global tokens, and computes each token from all."""
    model = zoo.read_spec(spec("decoder", **ASKED, head="linear", decoder={"causal": False})).model
    assert model.generation.not_incremental == ("attention `multi_head`", "`causal = false`")
