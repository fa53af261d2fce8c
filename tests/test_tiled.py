"""Attention within tiles of an image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_values import randomize

import zoo
from zoo.position import Rotation

ROWS, COLUMNS, WIDTH = 5, 7, 8
SIZES: dict[str, Any] = {"n_layers": 1, "d_model": WIDTH, "n_heads": 2, "d_ff": 8}


def built(tile: int) -> Any:
    """An attention of two heads with random values."""
    spec = {
        "format": 1,
        "name": "tiled",
        "builder": "encoder",
        "vocab": 5,
        "attention": {"kind": "tiled", "tile": tile},
    }
    return randomize(zoo.build(spec | SIZES, dtype=torch.float64).encoder.layers[0].self_attn)


def coordinates() -> torch.Tensor:
    """The rows and columns of an image, in another order than row by row."""
    places = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(1))
    return torch.tensor(places)[order]


def expected(attention: Any, x: torch.Tensor, turned: Rotation, same: Any) -> torch.Tensor:
    """Each patch by itself, of those for which `same` says that they are in its tile."""
    q, k, v = (
        getattr(attention, f"{name}_proj")(x).unflatten(-1, (2, -1)).transpose(-2, -3)
        for name in "qkv"
    )
    q, k = turned(q), turned(k)
    found = []
    for i in range(x.shape[-2]):
        tile = [j for j in range(x.shape[-2]) if same(i, j)]
        scores = (k[..., tile, :] @ q[..., i, :, None])[..., 0] / (WIDTH // 2) ** 0.5
        mixed = (scores.softmax(-1)[..., None, :] @ v[..., tile, :])[..., 0, :]
        found.append(mixed.flatten(-2))
    return attention.o_proj(torch.stack(found, -2))


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("path", ["by tile", "with weights", "masked", "own places"])
def test_a_patch_attends_to_its_tile(tile: int, path: str) -> None:
    """Also where tiles are cut off at the edges, and a rotation turns queries and keys."""
    attention, places = built(tile), coordinates()
    x = torch.randn(3, ROWS * COLUMNS, WIDTH, dtype=torch.float64)
    factors = torch.randn(ROWS * COLUMNS, 1, dtype=torch.float64)

    def turned(heads: torch.Tensor) -> torch.Tensor:
        return heads * factors

    tiles = (places // tile).tolist()
    given: dict[str, Any] = {"coordinates": places[None], "rotation": turned}
    if path == "with weights":
        given["return_weights"] = True
    elif path == "masked":
        given["mask"] = torch.ones(1, 1, 1, ROWS * COLUMNS, dtype=torch.bool)
        given["mask"][..., 4] = False
    elif path == "own places":
        given["coordinates"] = places.expand(3, -1, -1)
    found, weights = attention(x, **given)

    def same(i: int, j: int) -> bool:
        return tiles[i] == tiles[j] and not (path == "masked" and j == 4)

    seen = [i for i in range(len(tiles)) if any(same(i, j) for j in range(len(tiles)))]
    alone = expected(attention, x, turned, lambda i, j: same(i, j) or i not in seen)
    torch.testing.assert_close(found[:, seen], alone[:, seen])
    assert (weights is None) == (path != "with weights")
    if weights is not None:
        shown = torch.tensor([[same(i, j) for j in range(len(tiles))] for i in range(len(tiles))])
        assert torch.equal(weights > 0, shown.expand_as(weights))


def test_gradients_of_tiles_are_those_of_a_mask() -> None:
    attention, places = built(3), coordinates()[None]
    x = torch.randn(2, ROWS * COLUMNS, WIDTH, dtype=torch.float64)
    found = []
    for more in ({}, {"return_weights": True}):
        attention.zero_grad()
        attention(x, coordinates=places, **more)[0].square().sum().backward()
        maps = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        found.append([one.weight.grad.clone() for one in maps])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_without_rows_and_columns_a_tile_is_a_chunk() -> None:
    attention = built(3)
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    alone = expected(attention, x, lambda heads: heads, lambda i, j: i // 3 == j // 3)
    torch.testing.assert_close(attention(x)[0], alone)
    shifted = expected(attention, x, lambda heads: heads, lambda i, j: (i + 1) // 3 == (j + 1) // 3)
    torch.testing.assert_close(attention(x, positions=torch.arange(1, 9))[0], shifted)


def test_where_it_does_not_belong() -> None:
    spec = {"format": 1, "name": "d", "vocab": 9, "attention": {"kind": "tiled", "tile": 2}}
    with pytest.raises(zoo.SpecError, match="`tiled` is about one sequence, and cannot attend to"):
        zoo.read_spec(spec | SIZES | {"builder": "decoder", "memory_width": 8})
    native = {
        "builder": "native_image_text_decoder",
        "image_id": 1,
        "image": {"embedding": {"kind": "patch_vectors", "patch_size": 2}},
    }
    with pytest.raises(zoo.SpecError, match="an attention or an embedding tells apart 2"):
        zoo.read_spec(spec | SIZES | native)
