"""`short_convolution` against torch's own convolution, and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_values import add_noise
from references.attention_cases import made, randn

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo.reports.flops import flops
from zoo.showing.show import summary_data
from zoo_components.convolution import ShortConvolution
from zoo_components.norm import NoNorm

LENGTH = 7
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 11,
    "n_layers": 3,
    "d_model": 6,
    "d_ff": 8,
    "position": "none",
    "attention": "short_convolution",
}


def described(**fields: Any) -> ShortConvolution:
    norm = NoNorm(kind="none", width=6)
    return ShortConvolution(kind="short_convolution", norm=norm, d_model=6, **fields)


@pytest.mark.parametrize(
    "fields", [{}, {"bias": False}, {"kernel_size": 1}, {"kernel_size": LENGTH + 2}]
)
def test_the_formula(fields: dict[str, Any]) -> None:
    module, x = made(described(**fields)), randn(2, LENGTH, 6)
    t = dict(module.named_parameters())
    size, none = t["conv.weight"].shape[-1], torch.zeros(6).double()

    def mapped(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ t[f"{name}_proj.weight"].T + t.get(f"{name}_proj.bias", none)

    inner = (mapped("in_gate", x) * mapped("v", x)).transpose(1, 2)
    bias = t.get("conv.bias", none)
    conv = F.conv1d(F.pad(inner, (size - 1, 0)), t["conv.weight"], bias, groups=6)
    expected = mapped("o", mapped("out_gate", x) * conv.transpose(1, 2))
    found, weights = module(x, causal=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert weights is None
    assert sum(p.numel() for p in module.parameters()) == described(**fields).layout().n_parameters


@pytest.mark.parametrize("steps", [(1,) * LENGTH, (4, 1, 2), (1, 6)])
def test_token_by_token(steps: tuple[int, ...]) -> None:
    """Also where fewer tokens come than the kernel has."""
    module, x = made(described(kernel_size=4)), randn(2, LENGTH, 6)
    cache = Cache(LENGTH).layer(0).of("self_attn")
    found = torch.cat([module(part, cache=cache)[0] for part in x.split(steps, 1)], 1)
    torch.testing.assert_close(found, module(x)[0], rtol=0, atol=1e-12)


def test_the_state_holds_no_more_memory_than_it_says() -> None:
    """Not all tokens of a long prompt, of which it keeps two."""
    module = made(described())
    cache = Cache(100).layer(0).of("self_attn")
    module(randn(1, 100, 6), cache=cache)
    (kept,) = cache.state or ()
    assert kept.shape == (1, 2, 6)
    assert kept.untyped_storage().nbytes() == cache.n_bytes == 2 * 6 * 8


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_as_if_it_were_not_there(side: str) -> None:
    """With biases, by which the convolution's input is not zero at a token of zeros."""
    model = add_noise(zoo.build(SPEC, dtype=torch.float64).eval())
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 3, 1, 1, 1]])
    at = torch.arange(7)
    mask = torch.stack([at >= 0, at < 4])
    if side == "left":
        ids[1], mask[1] = ids[1].roll(3), mask[1].roll(3)
    found = model(ids, target_mask=mask)[1, mask[1]]
    torch.testing.assert_close(found, model(ids[1:, mask[1]])[0], rtol=0, atol=1e-12)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    spec = zoo.read_spec({**SPEC, "vocab": 40})
    data = summary_data(spec)
    assert data["state_bytes_per_sequence"] == 3 * 2 * 6 * 4  # layers, tokens, channels, bytes
    assert data["kv_cache_bytes_per_token"]["float32"] == 0
    layer = 4 * (6 * 6 + 6) + 6 * 3 + 6
    ffn, norms = 2 * 6 * 8 + 8 + 6, 2 * 2 * 6
    assert spec.n_parameters == 40 * 6 + 3 * (layer + ffn + norms) + 2 * 6 + 40 * 6
    maps = 3 * (4 * 6 * 6 + 2 * 6 * 8) + 6 * 40
    assert flops(spec, 50)["forward"] == 2 * 50 * maps


def test_what_it_cannot_be_in() -> None:
    with pytest.raises(SpecError, match="no token sees later ones in these layers"):
        zoo.read_spec({**SPEC, "builder": "encoder"})
    with pytest.raises(SpecError, match="rotary positions need a self-attention"):
        zoo.read_spec({**SPEC, "position": "rotary"})
    with pytest.raises(SpecError, match="state it under `self_attn`"):
        zoo.read_spec({**SPEC, "memory_width": 6})


def test_masks_that_differ_by_query_or_head() -> None:
    module, x = made(described()), randn(2, LENGTH, 6)
    for shape, what in (((2, 1, LENGTH, LENGTH), "query"), ((2, 2, 1, LENGTH), "head")):
        with pytest.raises(ValueError, match=f"differs by {what}"):
            module(x, mask=torch.ones(shape, dtype=torch.bool))
    for shape in ((2, 1, 1, LENGTH), (1, 1, LENGTH), (1, LENGTH)):
        everything = torch.ones(shape, dtype=torch.bool)
        torch.testing.assert_close(module(x, mask=everything)[0], module(x)[0])
