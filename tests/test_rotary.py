"""Rotary positions as products of complex numbers, and their frequencies against the papers and
against transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import zoo
from zoo_components.modules.rotary import RotaryPositions
from zoo_components.rotary import (
    DynamicRotary,
    LinearRotary,
    Llama3Rotary,
    LongRotary,
    ProportionalRotary,
    Rotary,
    YarnRotary,
)

HEAD, ORIGINAL = 32, 64
SHORT = [1.0 + 0.1 * k for k in range(HEAD // 2)]
LONG = [1.0 + 0.7 * k for k in range(HEAD // 2)]
SCALED: dict[str, tuple[type[Rotary], dict[str, Any], dict[str, Any]]] = {
    "linear": (LinearRotary, {"factor": 4.0}, {"factor": 4.0}),
    "dynamic": (
        DynamicRotary,
        {"factor": 3.0, "original_length": ORIGINAL},
        {"factor": 3.0},
    ),
    "yarn": (
        YarnRotary,
        {"factor": 8.0, "original_length": ORIGINAL, "beta_fast": 8.0, "beta_slow": 0.5},
        {"factor": 8.0, "beta_fast": 8.0, "beta_slow": 0.5},
    ),
    "yarn untruncated": (
        YarnRotary,
        {"factor": 8.0, "original_length": ORIGINAL, "truncate": False, "beta_fast": 8.0},
        {"factor": 8.0, "truncate": False, "beta_fast": 8.0},
    ),
    "yarn defaults": (
        YarnRotary,
        {"factor": 2.0, "original_length": ORIGINAL},
        {"factor": 2.0},
    ),
    "longrope": (
        LongRotary,
        {
            "factor": 4.0,
            "original_length": ORIGINAL,
            "short_factors": SHORT,
            "long_factors": LONG,
        },
        {"factor": 4.0, "short_factor": SHORT, "long_factor": LONG},
    ),
    "llama3": (
        Llama3Rotary,
        {"factor": 8.0, "original_length": ORIGINAL, "high_freq_factor": 5.0},
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 5.0},
    ),
}


def described(cls: type[Rotary], head_dim: int = HEAD, **fields: Any) -> Rotary:
    return cls(kind="rotary", d_model=2 * head_dim, n_heads=2, head_dim=head_dim, **fields)


def frequencies(description: Rotary, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """In a sequence of so many tokens."""
    return description.frequencies()(torch.arange(length), dtype)


def turned(x: Tensor, angles: Tensor, *, interleaved: bool, clockwise: bool) -> Tensor:
    """x (..., length, width) with each pair as a complex number times exp(i angle)."""
    half = x.shape[-1] // 2
    re, im = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = torch.complex(re, im) * torch.exp((-1j if clockwise else 1j) * angles)
    if interleaved:
        return torch.view_as_real(z).flatten(-2)
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
@pytest.mark.parametrize("direction", ["counterclockwise", "clockwise"])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.3])
def test_rotation(pairs: str, direction: str, fraction: float) -> None:
    head = 12 if fraction == 0.5 else 20
    description = described(
        Rotary, head, base=50.0, fraction=fraction, pairs=pairs, direction=direction
    )
    width = {1.0: 20, 0.5: 6, 0.3: 6}[fraction]
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, -1, 100, 3, 3]])
    rotation = description.build().rotation(positions, torch.float64)
    x = torch.randn(2, 3, 5, head, dtype=torch.float64, requires_grad=True)
    angles = torch.tensor(
        [
            [[p / 50.0 ** (2 * k / width) for k in range(width // 2)] for p in sequence]
            for sequence in positions.tolist()
        ],
        dtype=torch.float64,
    )[:, None]
    rotated, rest = x[..., :width], x[..., width:]
    expected = turned(
        rotated, angles, interleaved=pairs == "interleaved", clockwise=direction == "clockwise"
    )
    expected = torch.cat([expected, rest], -1)
    torch.testing.assert_close(rotation(x), expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(x)
    found, wanted = (torch.autograd.grad((y * weights).sum(), x) for y in (rotation(x), expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_tells_far_neighbours_apart(dtype: torch.dtype) -> None:
    """Positions 4096 and 4097 are one number in bfloat16."""
    description = described(Rotary)
    x = torch.randn(1, 1, HEAD).expand(1, 2, -1)
    at = torch.tensor([4096, 4097])
    exact = description.build().rotation(at, torch.float64)(x.double())
    rotated = description.build().rotation(at, dtype)(x.to(dtype))
    assert rotated.dtype == dtype
    assert (rotated.double() - exact).abs().max() < 0.03
    assert (exact[0, 0] - exact[0, 1]).abs().max() > 0.1


@pytest.mark.parametrize("fraction", [1.0, 0.25])
@pytest.mark.parametrize("length", [ORIGINAL // 2, ORIGINAL, ORIGINAL + 1, 3 * ORIGINAL])
@pytest.mark.parametrize("name", ["default", *SCALED])
def test_frequencies_of_transformers(name: str, length: int, fraction: float) -> None:
    """To the last bit, on both sides of the original length."""
    cls, ours, theirs = SCALED.get(name, (Rotary, {}, {}))
    n_pairs = int(HEAD * fraction) // 2
    cut = {k: v[:n_pairs] if isinstance(v, list) else v for k, v in ours.items()}
    description = described(cls, base=5000.0, fraction=fraction, **cut)
    parameters = {
        "rope_type": name.split()[0],
        "rope_theta": 5000.0,
        "partial_rotary_factor": fraction,
        "original_max_position_embeddings": ORIGINAL,
        **{k: v[:n_pairs] if isinstance(v, list) else v for k, v in theirs.items()},
    }
    config = LlamaConfig(
        hidden_size=2 * HEAD,
        num_attention_heads=2,
        head_dim=HEAD,
        max_position_embeddings=ORIGINAL,
        rope_parameters=parameters,
    )
    if name == "default":
        k = torch.arange(0, 2 * n_pairs, 2).float()
        expected, factor = 1.0 / (5000.0 ** (k / (2 * n_pairs))), 1.0
    else:
        compute = ROPE_INIT_FUNCTIONS[name.split()[0]]
        expected, factor = compute(config, "cpu", torch.tensor(length))
    assert torch.equal(frequencies(description, length), expected)
    assert description.magnitude == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.2])
def test_proportional_frequencies_of_transformers(fraction: float) -> None:
    parameters = {
        "rope_type": "proportional",
        "rope_theta": 5000.0,
        "partial_rotary_factor": fraction,
        "factor": 2.0,
    }
    config = LlamaConfig(head_dim=HEAD, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS["proportional"](config, "cpu")
    description = described(ProportionalRotary, base=5000.0, fraction=fraction, factor=2.0)
    assert torch.equal(frequencies(description, 5), expected)


# --- the formulas of the papers, one pair at a time -----------------------------------------------

BASE = 10000.0


def plain(k: int) -> float:
    return BASE ** (-2 * k / HEAD)


def dynamic(k: int, length: int) -> float:
    """NTK-aware interpolation by s = factor * L / L' - (factor - 1): b' = b s^(d / (d - 2))."""
    s = 3.0 * max(length, ORIGINAL) / ORIGINAL - 2.0
    return (BASE * s ** (HEAD / (HEAD - 2))) ** (-2 * k / HEAD)


def yarn(k: int, length: int) -> float:
    """The authors' code: (1 - gamma) theta / s + gamma theta, where gamma falls from 1 to 0, linearly
    in k, between the pairs that turn 8 times and once in the original length."""
    first, last = (
        HEAD * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE))
        for turns in (8.0, 1.0)
    )
    gamma = 1 - min(1.0, max(0.0, (k - max(first, 0)) / (last - max(first, 0))))
    return (1 - gamma) * plain(k) / 8.0 + gamma * plain(k)


def longrope(k: int, length: int) -> float:
    return plain(k) / (LONG if length > ORIGINAL else SHORT)[k]


def llama3(k: int, length: int) -> float:
    """Llama 3.1's reference code, by wavelengths."""
    wavelength = 2 * math.pi / plain(k)
    if wavelength < ORIGINAL / 5.0:
        return plain(k)
    if wavelength > ORIGINAL / 1.0:
        return plain(k) / 8.0
    smooth = (ORIGINAL / wavelength - 1.0) / (5.0 - 1.0)
    return (1 - smooth) * plain(k) / 8.0 + smooth * plain(k)


PAPERS: dict[str, Callable[[int, int], float]] = {
    "linear": lambda k, length: plain(k) / 4.0,
    "dynamic": dynamic,
    "yarn untruncated": yarn,
    "longrope": longrope,
    "llama3": llama3,
}


@pytest.mark.parametrize("length", [ORIGINAL // 2, ORIGINAL, ORIGINAL + 1, 3 * ORIGINAL])
@pytest.mark.parametrize("name", PAPERS)
def test_frequencies_of_the_papers(name: str, length: int) -> None:
    cls, fields, _ = SCALED[name]
    found = frequencies(described(cls, **fields), length, torch.float64)
    expected = [PAPERS[name](k, length) for k in range(HEAD // 2)]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-6, atol=0)
    exact = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=0)


def test_each_formula_has_all_its_pieces_in_the_test() -> None:
    """Else a wrong bound would not be seen: some pairs stay, some are slowed, some are between."""
    for name, factor in (("yarn untruncated", 8.0), ("llama3", 8.0)):
        shares = [PAPERS[name](k, 1) / plain(k) for k in range(HEAD // 2)]
        assert any(math.isclose(share, 1.0) for share in shares)
        assert any(math.isclose(share, 1 / factor) for share in shares)
        assert any(1.01 / factor < share < 0.99 for share in shares)


@pytest.mark.parametrize(
    ("cls", "fields", "factor"),
    [
        (YarnRotary, SCALED["yarn"][1], 0.1 * math.log(8.0) + 1.0),
        (YarnRotary, SCALED["yarn"][1] | {"attention_factor": 0.7}, 0.7),
        (LongRotary, SCALED["longrope"][1], math.sqrt(1 + math.log(4) / math.log(ORIGINAL))),
        (LongRotary, SCALED["longrope"][1] | {"attention_factor": 1.9}, 1.9),
        (YarnRotary, SCALED["yarn"][1] | {"factor": 0.5}, 1.0),
        (LongRotary, SCALED["longrope"][1] | {"factor": 0.5}, 1.0),
    ],
)
def test_queries_and_keys_are_scaled(
    cls: type[Rotary], fields: dict[str, Any], factor: float
) -> None:
    module = described(cls, **fields).build()
    assert isinstance(module, RotaryPositions)
    x = torch.randn(2, 6, HEAD, dtype=torch.float64)
    rotated = module.rotation(torch.arange(6), torch.float64)(x)
    torch.testing.assert_close(rotated.norm(dim=-1), factor * x.norm(dim=-1))


def test_only_the_rotated_part_is_scaled() -> None:
    module = described(YarnRotary, fraction=0.5, **SCALED["yarn"][1]).build()
    x = torch.randn(2, 6, HEAD)
    rotated = module.rotation(torch.arange(6), torch.float32)(x)
    assert torch.equal(rotated[..., HEAD // 2 :], x[..., HEAD // 2 :])


# --- specs ----------------------------------------------------------------------------------------


def spec(**position: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": "decoder", "vocab": 11, "n_layers": 1}
    return {**common, "d_model": 16, "n_heads": 2, "d_ff": 4, "position": position}


@pytest.mark.parametrize("name", SCALED)
def test_a_spec_survives_its_full_form(name: str) -> None:
    kind = f"rotary_{name.split()[0]}"
    fields = {k: v[:4] if isinstance(v, list) else v for k, v in SCALED[name][1].items()}
    read = zoo.read_spec(spec(kind=kind, **fields))
    assert type(read.model.decoder.position) is SCALED[name][0]
    assert zoo.read_spec(read.to_toml()) == read


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ({"kind": "rotary", "fraction": 0.4}, r"head_dim \* fraction = 3 is not even"),
        ({"kind": "rotary", "fraction": 0.1}, r"head_dim \* fraction = 0 is not even"),
        ({"kind": "rotary", "fraction": 1.5}, "at most 1"),
        ({"kind": "rotary", "base": 1.0}, "greater than 1"),
        ({"kind": "rotary_linear"}, "`factor` is missing"),
        ({"kind": "rotary", "factor": 2.0}, "unknown key `factor`"),
        (
            {"kind": "rotary_dynamic", "factor": 2.0, "original_length": 8, "fraction": 0.25},
            "no base that could grow",
        ),
        (
            {"kind": "rotary_yarn", "factor": 2.0, "original_length": 8, "beta_slow": 40.0},
            "beta_fast = 32.0 must be more than beta_slow = 40.0",
        ),
        (
            {"kind": "rotary_llama3", "factor": 2.0, "original_length": 8, "low_freq_factor": 4.0},
            "low_freq_factor = 4.0 must be less than",
        ),
        (
            {
                "kind": "rotary_longrope",
                "factor": 2.0,
                "original_length": 8,
                "short_factors": [1.0] * 4,
                "long_factors": [1.0] * 3,
            },
            "`long_factors` has 3 factors for 4 rotated pairs",
        ),
    ],
)
def test_contradictions(position: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**position))
