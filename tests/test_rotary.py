"""Rotary positions as products of complex numbers, and in specs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from references.rotary import HEAD, ORIGINAL, SCALED, described
from torch import Tensor

import zoo
from zoo_components.modules.rotary import GridRotaryPositions, RotaryPositions
from zoo_components.relative import Alibi, T5Buckets
from zoo_components.rotary import (
    AxialRotary,
    ClassGridRotary,
    CountedGridRotary,
    DynamicRotary,
    GridRotary,
    Llama3Rotary,
    LongRotary,
    Rotary,
    StoredRotary,
    YarnRotary,
)


def turned(x: Tensor, angles: Tensor, *, interleaved: bool, clockwise: bool) -> Tensor:
    """Return x (..., length, width) with each pair, as a complex number, times exp(i angle)."""
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


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rows_and_columns(pairs: str, fraction: float) -> None:
    """Of an image of 2 rows and 3 columns, after two vectors that are no patches."""
    head, n_before, rows, columns = 16, 2, 2, 3
    description = described(
        GridRotary, head, base=50.0, grid=(n_before, rows, columns), fraction=fraction, pairs=pairs
    )
    assert description.longest == 8
    n = int(head * fraction) // 4
    angles = [[0.0] * 2 * n] * n_before
    for row in range(rows):
        for column in range(columns):
            centres = 2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1
            angles.append([2 * math.pi * c / 50.0 ** (k / n) for c in centres for k in range(n)])
    expected = torch.tensor(angles, dtype=torch.float64)
    x = torch.randn(2, 3, 8, head, dtype=torch.float64)
    rotation = description.build().rotation(torch.arange(8), torch.float64)
    rotated, rest = x[..., : 4 * n], x[..., 4 * n :]
    wanted = turned(rotated, expected, interleaved=pairs == "interleaved", clockwise=False)
    torch.testing.assert_close(rotation(x), torch.cat([wanted, rest], -1), rtol=0, atol=1e-12)
    assert torch.equal(rotation(x)[..., :n_before, :], x[..., :n_before, :])


def test_the_width_of_all_rotated_elements_is_printed() -> None:
    scheme = AxialRotary(kind="rotary_axial", d_model=32, head_dim=16).build()
    assert repr(scheme) == "AxialRotaryPositions(width=16, base=10000.0)"


def test_rows_columns_and_a_class_token() -> None:
    """Of an image of 2 rows and 3 columns, after a vector whose angles are learned."""
    head, rows, columns = 8, 2, 3
    description = described(ClassGridRotary, head, base=50.0, grid=(1, rows, columns))
    module = description.build().double()
    torch.nn.init.normal_(module.class_angles)
    angles = [module.class_angles.tolist()]
    for row in range(rows):
        for column in range(columns):
            angles.append([c / 50.0 ** (k / 2) for c in (row, column) for k in range(2)])
    expected = torch.tensor(angles, dtype=torch.float64)
    x = torch.randn(2, 3, 7, head, dtype=torch.float64)
    wanted = turned(x, expected, interleaved=False, clockwise=False)
    found = module.rotation(torch.arange(7), torch.float64)(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    (found * torch.randn_like(found)).sum().backward()
    assert module.class_angles.grad is not None


def test_columns_and_rows_are_counted_from_one() -> None:
    """Of an image of 2 rows and 3 columns, after a vector that is not rotated."""
    head, rows, columns = 8, 2, 3
    fields = {"base": 50.0, "grid": (1, rows, columns), "pairs": "interleaved"}
    module = described(CountedGridRotary, head, **fields).build()
    angles = [[0.0] * 4]
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            angles.append([c / 50.0 ** (k / 2) for c in (column, row) for k in range(2)])
    expected = torch.tensor(angles, dtype=torch.float64)
    x = torch.randn(2, 3, 7, head, dtype=torch.float64)
    wanted = turned(x, expected, interleaved=True, clockwise=False)
    found = module.rotation(torch.arange(7), torch.float64)(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


IMAGES: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "builder": "encoder",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 2,
    "d_ff": 12,
    "head": "none",
    "n_registers": 3,
    "embedding": {"kind": "patches", "image_size": 6, "patch_size": 2},
    "position": "rotary_grid",
}


def test_the_grid_is_that_of_the_patches() -> None:
    """Also in layers with a base of their own."""
    rules = {"layers": [{"at": [1], "position": {"base": 7.0}}]}
    model = zoo.build(IMAGES | {"encoder": rules})
    found = [m for m in model.modules() if isinstance(m, GridRotaryPositions)]
    assert [(m.grid, m.frequencies.base) for m in found] == [((4, 3, 3), 100.0), ((4, 3, 3), 7.0)]
    assert model(torch.rand(2, 3, 6, 6)).shape == (2, 13, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 8}, "rows and columns turn equally many pairs: head_dim * fraction = 2"),
        ({"embedding": "tokens", "vocab": 9}, "these are positions of the patches of an image"),
        (
            {"position": "rotary_class_grid", "n_registers": 2},
            "for one vector before the patches, the class token, and here are 3",
        ),
    ],
)
def test_no_grid(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec({k: v for k, v in IMAGES.items() if k != "n_registers"} | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_tells_far_neighbours_apart(dtype: torch.dtype) -> None:
    """Positions 4096 and 4097 are the same number in bfloat16."""
    description = described(Rotary)
    x = torch.randn(1, 1, HEAD).expand(1, 2, -1)
    at = torch.tensor([4096, 4097])
    exact = description.build().rotation(at, torch.float64)(x.double())
    rotated = description.build().rotation(at, dtype)(x.to(dtype))
    assert rotated.dtype == dtype
    assert (rotated.double() - exact).abs().max() < 0.03
    assert (exact[0, 0] - exact[0, 1]).abs().max() > 0.1


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
    fields = {k: v[:4] if isinstance(v, tuple) else v for k, v in SCALED[name][1].items()}
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
            {"kind": "rotary_llama3", "factor": 2.0, "original_length": 8, "low_freq_factor": 4.5},
            "low_freq_factor = 4.5 must not be more than",
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
        (
            {
                "kind": "rotary_longrope",
                "factor": 2.0,
                "original_length": 8,
                "short_factors": [1.0] * 5,
                "long_factors": [1.0] * 4,
            },
            "`short_factors` has 5 factors for 4 rotated pairs",
        ),
    ],
)
def test_contradictions(position: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**position))


@pytest.mark.parametrize(
    ("cls", "fields", "needed"),
    [
        (Rotary, {}, "head_dim"),
        (DynamicRotary, {"factor": 2.0, "original_length": 4}, "head_dim"),
        (StoredRotary, {}, "head_dim"),
        (Alibi, {}, "n_heads"),
        (T5Buckets, {}, "n_heads"),
    ],
)
def test_what_works_on_heads_needs_an_attention_with_heads(
    cls: Any, fields: dict[str, Any], needed: str
) -> None:
    with pytest.raises(ValidationError, match=f"a self-attention that states .*{needed}"):
        cls(kind="scheme", d_model=8, **fields)


@pytest.mark.parametrize(("turns", "slowed"), [(64 / (2 * math.pi), 1), (20.0, 0), (1.0, 2)])
def test_no_pairs_between_the_slow_and_the_fast(turns: float, slowed: int) -> None:
    """With one bound for both, also for a pair that turns exactly as often."""
    fields = {"factor": 8.0, "original_length": 64, "low_freq_factor": turns}
    description = described(Llama3Rotary, 4, base=16.0, **fields, high_freq_factor=turns)
    found = description.build().frequencies(torch.arange(1), torch.float64)
    expected = torch.tensor([1.0, 0.25], dtype=torch.float64)
    expected[slowed:] /= 8
    torch.testing.assert_close(found, expected)
