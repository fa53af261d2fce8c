"""`latent` against a reference for one query, one head and one key at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import attention as reference
from references.attention_cases import (
    LENGTH,
    check_equal,
    described_latent,
    layer_norm,
    made,
    randn,
    rms,
    rotation,
    some_mask,
)

import zoo
from zoo.cache import Cache
from zoo_components.norm import NoNorm

FEATURES: dict[str, dict[str, Any]] = {
    "queries projected at once": {},
    "latent queries": {"q_lora_rank": 4},
    "bias": {"q_lora_rank": 4, "bias": True},
    "layer norm": {"q_lora_rank": 4, "latent_norm": layer_norm(5)},
    "eps": {"latent_norm": rms(5)},
    "no norm": {"q_lora_rank": 4, "latent_norm": NoNorm(kind="none", width=5)},
    "scale": {"scale": 1.3},
    "one head": {"n_heads": 1},
    "temperature": {
        "q_temperature": "log",
        "q_temperature_floor": 2.0,
        "q_temperature_scale": 0.4,
        "q_temperature_shift": 1,
    },
}


@pytest.mark.parametrize("fields", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_feature(fields: dict[str, Any], causal: bool) -> None:
    description = described_latent(**fields)
    x = randn(2, LENGTH, 6)
    check_equal(description, reference.latent, [x], turned=True, causal=causal)
    mask = some_mask(2, 1, LENGTH, LENGTH)
    bias = randn(description.n_heads, LENGTH, LENGTH, seed=5)
    check_equal(description, reference.latent, [x], causal=causal, mask=mask, bias=bias)


def test_memory() -> None:
    description = described_latent(key_width=4, q_lora_rank=3)
    mask = some_mask(2, 1, LENGTH, 7)
    inputs = [randn(2, LENGTH, 6), randn(2, 7, 4, seed=8)]
    check_equal(description, reference.latent, inputs, mask=mask)


def test_weights_do_not_change_the_output() -> None:
    module, x = made(described_latent(q_lora_rank=4)), randn(2, LENGTH, 6)
    fused, none = module(x, causal=True)
    explicit, weights = module(x, causal=True, return_weights=True)
    assert none is None
    torch.testing.assert_close(fused, explicit, rtol=0, atol=1e-14)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, LENGTH).double())
    assert not weights.triu(1).any()


def test_with_a_cache_keys_are_expanded_once() -> None:
    """The keys of the first call are expanded; later tokens attend to the latents directly."""
    module, x, cache = made(described_latent()), randn(2, LENGTH, 6), Cache(LENGTH)
    expanded: list[int] = []
    module.kv_b_proj.register_forward_hook(lambda _, args, __: expanded.append(args[0].shape[-2]))
    whole, _ = module(x, causal=True)
    outputs = []
    for n_tokens in (LENGTH - 2, 1, 1):
        start = cache.past.length
        cache.past.append(n_tokens, seen=None, counted=None, device=x.device)
        part = x[:, start : cache.past.length]
        outputs.append(module(part, causal=True, cache=cache.layer(0).of(""))[0])
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    assert expanded == [LENGTH, LENGTH - 2]


def test_only_the_rope_part_is_turned() -> None:
    """Shifting all positions changes nothing, changing distances does; and with zero weights for
    the rotated parts, positions have no effect."""
    module, x = made(described_latent()), randn(2, LENGTH, 6)
    near, shifted, far = (
        module(x, rotation=rotation(first + step * torch.arange(LENGTH)))[0]
        for first, step in [(0, 1), (9, 1), (0, 2)]
    )
    torch.testing.assert_close(near, shifted)
    assert (near - far).abs().max() > 1e-3
    module.kv_a_proj.weight.data[5:] = 0.0
    near, far = (module(x, rotation=rotation(s * torch.arange(LENGTH)))[0] for s in (1, 2))
    assert torch.equal(near, far)


def test_cache_of_deepseek_v2() -> None:
    """Table 1 of the paper: (d_c + d_h^R) elements per token and layer, 4.5 d_h with
    d_c = 4 d_h and d_h^R = d_h / 2; that is 2.25 groups of grouped-query attention."""
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    description = described_latent(d_model=5120, n_heads=128, v_head_dim=128, **sizes)
    assert description.layout().cache == 4.5 * 128
    assert description.layout().memory_cache == 0
    other = described_latent(key_width=9, **sizes).layout()
    assert (other.cache, other.memory_cache) == (0, 576)


def test_temperature_is_refused_between_sequences() -> None:
    with pytest.raises(ValueError, match="is about positions in one sequence"):
        described_latent(key_width=9, q_temperature="log")


def test_what_follows_from_the_widths() -> None:
    """The position scheme gets the rotated width; the scale depends on the whole width."""
    description = described_latent(qk_rope_head_dim=6, qk_nope_head_dim=19)
    assert description.head_dim == 6
    assert description.scale == 1 / 5


@torch.no_grad()
def test_without_positions_the_order_of_earlier_tokens_is_not_seen() -> None:
    """As in the latent attention of Kimi Linear, whose shared part is not rotated."""
    latent = {"kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}
    spec = {"builder": "decoder", "vocab": 20, "n_layers": 1, "d_model": 8, "n_heads": 2}
    spec |= {"format": 1, "name": "m", "d_ff": 8, "attention": {"kind": "latent", **latent}}
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 1, 2, 4]])
    blind = zoo.build({**spec, "position": "none"}, dtype=torch.float64)
    torch.testing.assert_close(blind(one)[0, -1], blind(other)[0, -1], rtol=0, atol=1e-14)
    seeing = zoo.build({**spec, "position": "rotary"}, dtype=torch.float64)
    assert (seeing(one)[0, -1] - seeing(other)[0, -1]).abs().max() > 1e-6
