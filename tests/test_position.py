"""Position schemes that are added to the embeddings, against a reference for single elements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from drawings import SMALL
from torch import Tensor
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

import zoo
from zoo.cache import Cache
from zoo_components.modules.position import SinusoidalPositions
from zoo_components.position import GridSinusoidal, Learned, LearnedPatches, NoPosition, Sinusoidal

LENGTH = 7


def sinusoidal(width: int, **fields: Any) -> SinusoidalPositions:
    """Return a float64 module with its table."""
    description = Sinusoidal(kind="sinusoidal", d_model=width, max_length=LENGTH, **fields)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        module = description.build()
    finally:
        torch.set_default_dtype(before)
    assert isinstance(module, SinusoidalPositions)
    module.reset_buffers(device="cpu")
    return module


def added(module: Any, width: int, positions: Tensor | None = None) -> Tensor:
    """Return the addend of the scheme, by default at positions 0, 1, ..."""
    x = torch.randn(2, LENGTH, width, dtype=torch.float64)
    positions = torch.arange(LENGTH) if positions is None else positions
    return module.embed(x, positions) - x


def test_the_layout_counts_the_table() -> None:
    description = Sinusoidal(kind="sinusoidal", d_model=4, max_length=LENGTH, offset=2)
    assert description.layout().computed == sinusoidal(4, offset=2).table.numel() == 9 * 4


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("base", [10000.0, 7.0])
@pytest.mark.parametrize("offset", [0, 2])
def test_sinusoids_of_vaswani(width: int, base: float, offset: int) -> None:
    """Section 3.5 of the paper: PE(pos, 2i) = sin, PE(pos, 2i + 1) = cos of pos / base^(2i / d)."""
    expected = torch.tensor(
        [
            [
                (math.sin if j % 2 == 0 else math.cos)(
                    (position + offset) / base ** (2 * (j // 2) / width)
                )
                for j in range(width)
            ]
            for position in range(LENGTH)
        ],
        dtype=torch.float64,
    )
    module = sinusoidal(width, base=base, offset=offset)
    torch.testing.assert_close(added(module, width)[1], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n_before", [0, 2])
def test_sinusoids_of_columns_and_rows(n_before: int) -> None:
    width, rows, columns, base = 8, 2, 3, 50.0
    grid = (n_before, rows, columns)
    description = GridSinusoidal(kind="sinusoidal_grid", d_model=width, grid=grid, base=base)
    module = description.build().double()
    module.reset_buffers(device="cpu")
    assert description.longest == n_before + rows * columns
    assert description.layout().computed == module.table.numel() == description.longest * width
    x = torch.randn(2, n_before + rows * columns, width, dtype=torch.float64)
    found = module.embed(x, torch.arange(x.shape[1])) - x
    assert torch.equal(found[:, :n_before], torch.zeros(2, n_before, width).double())
    for row in range(rows):
        for column in range(columns):
            expected = [
                turn(place / base ** (4 * k / width))
                for place in (column, row)
                for turn in (math.sin, math.cos)
                for k in range(width // 4)
            ]
            vector = found[1, n_before + row * columns + column]
            expected = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(vector, expected, rtol=0, atol=1e-14)


def test_registers_have_no_columns_and_rows() -> None:
    patches = {"kind": "patches", "image_size": 4, "patch_size": 2, "n_registers": 3}
    sizes = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 4, "head": "none"}
    spec = {"format": 1, "name": "m", "builder": "encoder", "position": "sinusoidal_grid"}
    model = zoo.build(spec | sizes | {"embedding": patches}, dtype=torch.float64)
    table = model.encoder.embed.positions.table
    assert table.shape == (5, 8)  # the class token, which has none either, and four patches
    assert torch.equal(table[0], torch.zeros(8, dtype=torch.float64))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed." in name:
                tensor.zero_()
    found = model.encoder.embed(torch.ones(1, 3, 4, 4).double(), torch.arange(8))[0]
    assert torch.equal(found[[0, 4, 5, 6, 7]], table)


def test_the_row_of_the_class_token_is_the_last() -> None:
    """In the table; the vector itself comes before those of the patches."""
    grid, width = (1, 2, 3), 4
    description = LearnedPatches(kind="learned_patches", d_model=width, grid=grid)
    module = description.build().double()
    torch.nn.init.normal_(module.weight)
    x = torch.randn(2, 7, width, dtype=torch.float64)
    expected = x + torch.cat([module.weight[6:], module.weight[:6]])
    assert torch.equal(module.embed(x, torch.arange(7)), expected)
    with pytest.raises(ValueError, match="one vector before the patches, the class token"):
        LearnedPatches(kind="learned_patches", d_model=width, grid=(2, 2, 3))


def test_columns_and_rows_of_what() -> None:
    with pytest.raises(ValueError, match="choose an `embedding` of patches"):
        GridSinusoidal(kind="sinusoidal_grid", d_model=8)
    with pytest.raises(ValueError, match="half of d_model = 7 each: it must be even"):
        GridSinusoidal(kind="sinusoidal_grid", d_model=7, grid=(0, 2, 3))


@pytest.mark.parametrize("width", [8, 9])
def test_all_sines_first(width: int) -> None:
    turns = sinusoidal(width)
    halves = sinusoidal(width, arrangement="halves")
    both = added(turns, width), added(halves, width)
    torch.testing.assert_close(
        torch.cat([both[0][..., 0::2], both[0][..., 1::2]], -1), both[1], rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("width", [4, 9, 10])
def test_tensor2tensor_sinusoids(width: int) -> None:
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(LENGTH + 3, width)[3:]
    module = sinusoidal(width, arrangement="halves", exponent="half_minus_one", offset=3)
    torch.testing.assert_close(added(module, width)[0].float(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("width", [8, 9])
def test_marian_sinusoids(width: int) -> None:
    theirs = MarianSinusoidalPositionalEmbedding(LENGTH, width)
    expected = theirs.create_weight().detach()
    module = sinusoidal(width, arrangement="halves")
    torch.testing.assert_close(added(module, width)[0].float(), expected, rtol=0, atol=1e-6)


def test_table_is_rounded_once() -> None:
    """Also in a bfloat16 model, a value is the nearest bfloat16 to the exact sine."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        module = Sinusoidal(kind="sinusoidal", d_model=8, max_length=5000).build()
    finally:
        torch.set_default_dtype(torch.float32)
    assert isinstance(module, SinusoidalPositions)
    module.reset_buffers(device="cpu")
    exact = torch.tensor(math.sin(4999 / 10000 ** (2 / 8)), dtype=torch.float64)
    assert module.table[4999, 2] == exact.bfloat16()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_is_cast_is_the_one_that_was_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL + 'position = "sinusoidal"\n')
    model = zoo.build(tmp_path / "small.toml").bfloat16().to(dtype).eval()
    zoo.save(model, tmp_path / "small.safetensors")
    loaded = zoo.load(tmp_path / "small.safetensors").eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(model(ids), loaded(ids))


@pytest.mark.parametrize("zero", [False, True])
def test_padding_of_sinusoids(zero: bool) -> None:
    positions = torch.tensor([[0, 1, 2, -1, 3, -1, -1]]).expand(2, -1)
    rows = added(
        sinusoidal(8, offset=2, zero_padding=zero, count_positions="unpadded"), 8, positions
    )[0]
    expected = added(sinusoidal(8, offset=1), 8)[0][0]
    assert torch.allclose(rows[3], torch.zeros(8).double() if zero else expected, atol=1e-14)
    first = torch.tensor([math.sin(2), math.cos(2)], dtype=torch.float64)  # padding is before it
    assert torch.allclose(rows[0, :2], first, atol=1e-14)


@pytest.mark.parametrize("offset", [0, 2])
def test_learned(offset: int) -> None:
    description = Learned(kind="learned", d_model=5, max_length=LENGTH, offset=offset)
    assert description.layout().find("weight").shape == (LENGTH + offset, 5)
    module = description.build().double()
    torch.nn.init.normal_(module.weight)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 2, 3, 4]])
    rows = added(module, 5, positions)
    for sequence in range(2):
        for token in range(LENGTH):
            row = max(0, int(positions[sequence, token]) + offset)
            torch.testing.assert_close(rows[sequence, token], module.weight[row])
    rows.sum().backward()
    used = {max(0, p + offset) for p in positions.flatten().tolist()}
    assert {i for i, row in enumerate(module.weight.grad) if row.any()} == used


@pytest.mark.parametrize(
    "description",
    [
        Sinusoidal(kind="sinusoidal", d_model=4, max_length=LENGTH, offset=3),
        Learned(kind="learned", d_model=4, max_length=LENGTH, offset=3),
    ],
)
def test_too_long_a_sequence_is_refused(description: Any) -> None:
    module = description.build()
    module.embed(torch.zeros(1, LENGTH, 4), torch.arange(LENGTH))
    with pytest.raises(ValueError, match=r"8 tokens is longer than the model's 7 positions"):
        module.embed(torch.zeros(1, LENGTH + 1, 4), torch.arange(LENGTH + 1))
    with pytest.raises(ValueError, match=r"position 7, counted from 0, is beyond the model's 7 po"):
        module.embed(torch.zeros(1, 2, 4), torch.tensor([LENGTH - 1, LENGTH]))


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_too_many_tokens_after_those_in_a_cache(kind: str) -> None:
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": 9, "n_layers": 1}
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 8, "position": {"kind": kind, "max_length": 4}}
    model, cache = zoo.build(spec | sizes).eval(), Cache(20)
    model.decode(torch.tensor([[1, 2, 3, 4]]), cache=cache)
    with pytest.raises(ValueError, match="position 4, counted from 0, is beyond the model's 4"):
        model.decode(torch.tensor([[5]]), cache=cache)


def test_none_does_nothing() -> None:
    module = NoPosition(kind="none", d_model=4).build()
    x = torch.randn(2, 3, 4)
    assert torch.equal(module.embed(x, torch.arange(3)), x)
    assert module.rotation(torch.arange(3), x.dtype) is None
    assert module.bias(torch.arange(3), torch.arange(3), x.dtype) is None


def spec(**position: Any) -> dict[str, Any]:
    common = {"format": 1, "name": "m", "builder": "encoder", "vocab": 11, "n_layers": 1}
    return {**common, "d_model": 2, "n_heads": 1, "d_ff": 4, "position": position}


def test_contradiction() -> None:
    with pytest.raises(zoo.SpecError, match="divides by d_model / 2 - 1"):
        zoo.read_spec(spec(kind="sinusoidal", exponent="half_minus_one"))


def test_learned_needs_a_length() -> None:
    with pytest.raises(zoo.SpecError, match="`max_length` is missing"):
        zoo.read_spec(spec(kind="learned"))
