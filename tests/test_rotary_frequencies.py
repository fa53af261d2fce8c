"""The rotation angles of rotary positions, against transformers and the papers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from references.rotary import HEAD, LONG, ORIGINAL, SCALED, SHORT, described, frequencies
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from zoo_components.rotary import ProportionalRotary, Rotary, YarnRotary


@pytest.mark.parametrize("fraction", [1.0, 0.25])
@pytest.mark.parametrize("length", [ORIGINAL // 2, ORIGINAL, ORIGINAL + 1, 3 * ORIGINAL])
@pytest.mark.parametrize("name", ["default", *SCALED])
def test_frequencies_of_transformers(name: str, length: int, fraction: float) -> None:
    """Bit by bit, below and above the original length."""
    cls, ours, theirs = SCALED.get(name, (Rotary, {}, {}))
    n_pairs = int(HEAD * fraction) // 2
    cut = {k: v[:n_pairs] if isinstance(v, tuple) else v for k, v in ours.items()}
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


@pytest.mark.parametrize(
    ("original", "base"), [(6, 5000.0), (4096, 1.3)], ids=["a step", "past the last pair"]
)
def test_yarn_at_its_ends(original: int, base: float) -> None:
    """The pair that turns once is the first, or would come after the last."""
    config = LlamaConfig(
        head_dim=HEAD,
        max_position_embeddings=original,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": base,
            "factor": 4.0,
            "original_max_position_embeddings": original,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    description = described(YarnRotary, base=base, factor=4.0, original_length=original)
    assert torch.equal(frequencies(description, 5), expected)


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
    """The authors' code: (1 - gamma) theta / s + gamma theta, where gamma falls from 1 to 0,
    linearly in k, between the pairs that turn 8 times and once in the original length."""
    first, last = (
        HEAD * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE))
        for turns in (8.0, 1.0)
    )
    gamma = 1 - min(1.0, max(0.0, (k - max(first, 0)) / (last - max(first, 0))))
    return (1 - gamma) * plain(k) / 8.0 + gamma * plain(k)


def longrope(k: int, length: int) -> float:
    return plain(k) / (LONG if length > ORIGINAL else SHORT)[k]


def llama3(k: int, length: int) -> float:
    """The reference code of Llama 3.1, by wavelengths."""
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
    """Some pairs stay, some are slowed, some are between; otherwise a wrong bound would not be
    noticed."""
    for name, factor in (("yarn untruncated", 8.0), ("llama3", 8.0)):
        shares = [PAPERS[name](k, 1) / plain(k) for k in range(HEAD // 2)]
        assert any(math.isclose(share, 1.0) for share in shares)
        assert any(math.isclose(share, 1 / factor) for share in shares)
        assert any(1.01 / factor < share < 0.99 for share in shares)
