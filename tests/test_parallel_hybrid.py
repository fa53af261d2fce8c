"""`parallel_hybrid` against attention and Mamba-2 as `tests/references` and its paper state them,
each by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention import multi_head, named_norm, turned
from references.attention_cases import SMALL_DECODER, described, made, randn, rms, rotation
from test_mamba2 import recurrent

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo.showing.show import summary_data
from zoo_components.mamba2 import Mamba2
from zoo_components.norm import NoNorm
from zoo_components.parallel_hybrid import ParallelHybrid

WIDTH, LENGTH = 6, 9
SPEC = SMALL_DECODER | {
    "position": "rotary",
    "norm": "rms_norm",
    "attention": {"kind": "parallel_hybrid", "recurrence": {"n_groups": 2, "state_size": 3}},
}


def spec_with(**fields: Any) -> dict[str, Any]:
    return {**SPEC, "attention": SPEC["attention"] | fields}


def hybrid(attention: dict[str, Any], recurrence: dict[str, Any]) -> ParallelHybrid:
    norm = NoNorm(kind="none", width=WIDTH)
    state = {"n_heads": 4, "head_dim": 3, "state_size": 5, "eps": 1e-3}
    stated = {"kind": "mamba2", "d_model": WIDTH, "norm": norm} | state | recurrence
    return ParallelHybrid(
        kind="parallel_hybrid",
        norm=norm,
        d_model=WIDTH,
        attention=described(**attention),
        recurrence=Mamba2(**stated),
    )


def before(a: Mamba2, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Each token (length, width) by the norm before the mixer."""
    return torch.stack([named_norm(t, "pre_norm", a.norm, row) for row in x])


def after(a: Mamba2, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Each token by the norm after it, if there is one."""
    if "post" not in a.norms:
        return x
    return torch.stack([named_norm(t, "post_norm", a.norm, row) for row in x])


@pytest.mark.parametrize(
    ("attention", "recurrence"),
    [
        ({}, {}),
        ({"residual_scale": 0.7, "window": 3, "v_scale": 0.5}, {"residual_scale": 1.5}),
        ({}, {"norms": ("pre", "post"), "norm": rms(WIDTH), "residual_scale": 0.4}),
    ],
)
def test_the_sum_of_both(attention: dict[str, Any], recurrence: dict[str, Any]) -> None:
    """All tokens at once, and token by token with a cache."""
    description = hybrid(attention, recurrence)
    module, x = made(description), randn(2, LENGTH, WIDTH)
    tensors = dict(module.named_parameters())
    ours, theirs = (
        {name.removeprefix(f"{part}."): t for name, t in tensors.items() if name.startswith(part)}
        for part in ("attention", "recurrence")
    )
    a, b = description.attention, description.recurrence
    attended, weights = multi_head(a, ours, x, causal=True, turn=turned)
    assert isinstance(b, Mamba2)
    mixed = torch.stack([after(b, theirs, recurrent(b, theirs, before(b, theirs, r))) for r in x])
    expected = a.residual_scale * attended + b.residual_scale * mixed
    whole, found = module(
        x, causal=True, rotation=rotation(torch.arange(LENGTH)), return_weights=True
    )
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(found, weights, rtol=0, atol=1e-10)
    cache, steps = Cache(LENGTH), []
    for i, one in enumerate(x.split(1, 1)):
        at = cache.past.append(1, seen=None, counted=None, device=x.device)
        own = cache.layer(0).of("self_attn")
        steps.append(module(one, causal=True, rotation=rotation(at), cache=own)[0])
        assert own.state is not None, i
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-10)
    assert description.layout().n_parameters == sum(p.numel() for p in tensors.values())


def test_what_show_says() -> None:
    """Keys and values grow with the tokens, and the state does not."""
    spec = zoo.read_spec(SPEC)
    inner, vectors = 32, 2 * 3
    data = summary_data(spec)
    assert data["kv_cache_bytes_per_token"]["float32"] == 3 * 2 * 16 * 4
    assert data["state_bytes_per_sequence"] == 3 * (inner * 3 + 3 * (inner + 2 * vectors)) * 4
    names = {name for name, _ in spec.layout.tensors() if ".0.self_attn." in name}
    assert {name.split("self_attn.")[1].split(".")[0] for name in names} == {
        "pre_norm",
        "attention",
        "recurrence",
    }


def test_scales_of_the_spec_are_those_of_both() -> None:
    """A scale at the top is applied to what each of them adds, and so once to their sum."""
    scaled, plain = zoo.build({**SPEC, "residual_scale": 0.25}), zoo.build(SPEC)
    for layer in plain.decoder.layers:  # the same, with the factor in the last maps
        for out in (layer.self_attn.attention, layer.self_attn.recurrence, layer.ffn):
            for tensor in (out.down_proj if out is layer.ffn else out.o_proj).parameters():
                tensor.data.mul_(0.25)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(scaled(ids), plain(ids))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "mamba2"}, "`mamba2` has a state, and `attention` is what keeps each token"),
        ({"recurrence": "multi_head"}, "`multi_head` keeps each token, and `recurrence` is what"),
        ({"recurrence": "cross_layer"}, "`cross_layer` reads what the stack has for attention"),
        ({"recurrence": "none"}, "what is side by side is two"),
        ({"attention": {"norms": ["out"]}}, "`attention` cannot have a norm after its own"),
        ({"recurrence": {"skip_scale": 0.5}}, "both are added to one sum, and so have one"),
        ({"attention": {"d_out": 8}}, "`attention` is 8 wide at its output"),
        ({"residual_scale": 0.5, "attention": {}}, None),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], message: str | None) -> None:
    if message is None:  # of the table around both, it holds for both
        zoo.read_spec(spec_with(**fields))
        return
    with pytest.raises(SpecError, match=message):
        zoo.read_spec(spec_with(**fields))


def test_it_has_no_memory_and_no_encoder() -> None:
    pair = {**SPEC, "builder": "encoder_decoder", "source_vocab": 9, "target_vocab": 9}
    del pair["vocab"], pair["attention"]
    with pytest.raises(SpecError, match="cannot attend to another"):
        zoo.read_spec({**pair, "decoder": {"cross_attn": "parallel_hybrid"}})
    with pytest.raises(SpecError, match="no token sees later ones in these layers"):
        zoo.read_spec({**SPEC, "builder": "encoder", "head": "none"})
