"""A decoder whose text has images in it, of which it gets the states of inner layers too; positions
of images by a grid that is stretched; and rotary positions that take turns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import randomized
from test_native_images import (
    IMAGE_ID,
    IMAGES,
    METHODS,
    PROMPTS,
    SIZES,
    VOCAB,
    after,
    check_generation,
    check_padding,
    squares,
)
from torch.nn import functional as F

import zoo
from zoo.generation.decoding import Decoding
from zoo.generation.fixed_cache import FixedCache
from zoo.generation.media import Media
from zoo_components.modules.rotary import InterleavedMultimodalRotaryPositions
from zoo_components.rotary import InterleavedMultimodalRotary

GRID = 3
DEEP = [0, 2]
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "deep",
    "builder": "deepstack_image_text_decoder",
    "vocab": VOCAB,
    "image_id": IMAGE_ID,
    "n_layers": 3,
    "n_heads": 2,
    "d_ff": 20,
    "projector": {"merge": 2},
    "deep_layers": DEEP,
    "deep_projector": {"norm": "layer_norm", "d_hidden": 12},
    "decoder": {
        "d_model": 16,
        "position": {"kind": "rotary_multimodal_interleaved", "sections": [2, 1, 1]},
    },
    "image": {
        "d_model": 8,
        "embedding": {
            "kind": "grid_patch_vectors",
            "grid_size": GRID,
            "patch_size": 2,
            "frames": 3,
            "bias": True,
        },
        "position": "rotary_axial",
    },
}


def changed(**tables: Any) -> dict[str, Any]:
    """The spec with other tables."""
    return {**copy.deepcopy(SPEC), **tables}


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(SPEC)


def read(model: Any, image: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What is read of an image, patch by patch: the states that stand in the text, and what is
    added to them after the first layers."""
    rows, columns = image.shape[1] // 2, image.shape[2] // 2
    embed = model.image.embed
    weight = embed.patches.weight.view(8, 3, 3, 2, 2)
    films = torch.stack([image] * 3, 1)[None]
    vectors = F.conv3d(films, weight, embed.patches.bias, stride=(3, 2, 2))[0, :, 0]
    grid = embed.grid.weight.view(GRID, GRID, 8).permute(2, 0, 1)[None]
    vectors = vectors + F.interpolate(grid, (rows, columns), mode="bilinear", align_corners=True)[0]
    x = vectors.flatten(1).T
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    deep = []
    for number, layer in enumerate(model.image.layers):
        x = after(layer, x, places, causal=False)  # heads of two pairs: one by row, one by column
        if number in DEEP:
            maps, merged = model.deep_projectors[len(deep)], squares(x.unflatten(0, (rows, -1)))
            merged = F.layer_norm(merged, (32,), maps.norm.weight, maps.norm.bias)
            deep.append(maps.down_proj(F.gelu(maps.up_proj(merged))))
    merged = squares(model.image.norm(x).unflatten(0, (rows, -1)))
    return model.projector.down_proj(F.gelu(model.projector.up_proj(merged))), deep


def test_a_call_by_loops(model: Any) -> None:
    """Of one text with two images, of 4 x 2 and of 2 x 6 patches."""
    (one, deep_one), (other, deep_other) = (read(model, image) for image in IMAGES[:2])
    for found, expected in zip(model.read_images(IMAGES[:2]), (one, other), strict=True):
        torch.testing.assert_close(found, expected)
    table = model.decoder.embed.tokens.weight
    x = torch.cat([table[[1]], one, table[[3]], other, table[[4]]])
    coordinates = torch.tensor(
        [(0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 3, 3), (4, 4, 4), (4, 4, 5), (4, 4, 6), (7, 7, 7)]
    ).double()
    frequencies = 10000.0 ** -(torch.arange(4) / 4).double()
    angles = coordinates[:, [0, 1, 2, 0]] * frequencies  # by turns, and the time once more
    for number, layer in enumerate(model.decoder.layers):
        x = after(layer, x, angles, causal=True)
        if number < len(DEEP):
            x[1:3] += deep_one[number]
            x[4:7] += deep_other[number]
    expected = model.head(model.decoder.norm(x))
    torch.testing.assert_close(model(torch.tensor(PROMPTS[:1]), IMAGES[:2])[0], expected)


@pytest.mark.parametrize(
    ("sections", "axes"),
    [
        ((2, 1, 1), [0, 1, 2, 0]),
        ((3, 3, 2), [0, 1, 2, 0, 1, 2, 0, 1]),
        ((5, 2, 3), [0, 1, 2, 0, 1, 2, 0, 0, 2, 0]),
    ],
)
def test_pairs_take_turns(sections: tuple[int, int, int], axes: list[int]) -> None:
    n_pairs = sum(sections)
    scheme = InterleavedMultimodalRotary(
        kind="rotary_multimodal_interleaved", d_model=8, head_dim=2 * n_pairs, sections=sections
    ).build()
    assert isinstance(scheme, InterleavedMultimodalRotaryPositions)
    found = scheme.angles_at(torch.tensor([[3, 50, 700]]), torch.float64)
    turned = torch.tensor([3, 50, 700])[axes] * 10000.0 ** -(
        torch.arange(n_pairs).double() / n_pairs
    )
    torch.testing.assert_close(found, turned[None])


def check_grid(kind: str, size: int, shape: tuple[int, int], **bilinear: bool) -> None:
    """Hold patches with vectors of their places against a grid that is interpolated."""
    embedding = {"kind": kind, "patch_size": 2, "grid_size": size}
    model = randomized(changed(image={**SPEC["image"], "embedding": embedding}))
    embed, (rows, columns) = model.image.embed, shape
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    patches = torch.randn(2, rows * columns, 12, dtype=torch.float64)
    found = embed(patches, torch.arange(rows * columns), coordinates=places[None])
    table = embed.grid.weight.view(size, size, 8).permute(2, 0, 1)[None]
    grid = F.interpolate(table, shape, mode="bilinear", **bilinear)
    torch.testing.assert_close(found, embed.patches(patches) + grid[0].flatten(1).T)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (5, 4), (7, 1)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_grid_is_stretched_from_corner_to_corner(size: int, shape: tuple[int, int]) -> None:
    check_grid("grid_patch_vectors", size, shape, align_corners=True)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (5, 4), (9, 2)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_grid_is_resized_to_an_image(size: int, shape: tuple[int, int]) -> None:
    """Where there are fewer patches than places, each takes a share of all that it covers."""
    check_grid("resized_grid_patch_vectors", size, shape, antialias=True)


def test_without_rows_and_columns_both_are_the_position(model: Any) -> None:
    embed = model.image.embed
    patches = torch.randn(2, 4, 36, dtype=torch.float64)
    positions = torch.tensor([[-1, 0, 1, 2], [0, 1, 2, 3]])
    diagonal = positions.clamp(min=0)[..., None].expand(2, 4, 2)
    expected = embed(patches, positions, coordinates=diagonal)
    torch.testing.assert_close(embed(patches, positions), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model: Any, side: str) -> None:
    check_padding(model, side)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_generation(model: Any, method: Any) -> None:
    check_generation(model, method)


def test_what_follows_is_that_of_one_call(model: Any) -> None:
    """With a cache, also one of fixed shapes."""
    ids, following = torch.tensor(PROMPTS[:1]), torch.tensor([[5, 7, IMAGE_ID]])
    found, inserted = model.insert_images(ids, IMAGES[:2])
    states = model.decode(torch.cat([found, following], 1), inserted=inserted)
    for recorded in (False, True):
        decoding = Decoding(
            model, capacity=11, memory=None, keep=True, media=Media("images", IMAGES[:2], (2,))
        )
        decoding.scores(ids)
        if recorded:
            decoding.cache = FixedCache(decoding.cache, ids.device)
        for at, token in enumerate(following[0]):
            scores = decoding.scores(token.view(1, 1))
            expected = model.head(states[:, ids.shape[1] + at])
            torch.testing.assert_close(scores, expected, rtol=0, atol=1e-10)


def test_attention_maps(model: Any) -> None:
    output, maps = model(torch.tensor(PROMPTS[:1]), IMAGES[:2], return_attention=True)
    torch.testing.assert_close(output, model(torch.tensor(PROMPTS[:1]), IMAGES[:2]))
    sizes = [tuple(map_.shape[2:]) for map_ in maps.encoder]
    assert sizes == [(8, 8)] * 3 + [(12, 12)] * 3


def test_it_is_saved_and_loaded_with_narrow_vectors_of_tokens(tmp_path: Path) -> None:
    """The states that stand in the text are as wide as the vectors of tokens, and what is added to
    states of layers as wide as those."""
    decoder = {**SPEC["decoder"], "embedding": {"kind": "tokens", "d_embed": 6}}
    model = randomized(changed(decoder=decoder))
    assert [one.down_proj.weight.shape[0] for one in model.deep_projectors] == [16, 16]
    assert model.projector.down_proj.weight.shape[0] == 6
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors").eval()
    text = torch.tensor(PROMPTS[:1])
    torch.testing.assert_close(loaded(text, IMAGES[:2]), model(text, IMAGES[:2]))
    how = loaded.spec.model.generation.inserted_images
    assert [how.states_of(*size) for size in SIZES] == [2, 3, 2]


def test_parameters_of_the_grid_and_of_deep_states() -> None:
    inherited = {"kind": "patch_vectors", "patch_size": 2, "frames": 3, "bias": True}
    plain = changed(
        builder="native_image_text_decoder", image={**SPEC["image"], "embedding": inherited}
    )
    del plain["deep_layers"], plain["deep_projector"]
    of_map = 2 * 32 + (32 * 12 + 12) + (12 * 16 + 16)
    expected = zoo.read_spec(plain).n_parameters + GRID**2 * 8 + len(DEEP) * of_map
    assert zoo.read_spec(SPEC).n_parameters == expected


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"deep_layers": []}, "deep_layers"),
        ({"deep_layers": [2, 0]}, "`deep_layers` must be in ascending order"),
        ({"deep_layers": [1, 1]}, "`deep_layers` must be in ascending order"),
        (
            {"deep_layers": [0, 3]},
            "layer 3 of `deep_layers` is beyond the 3 layers of `image`, which are counted from 0",
        ),
        (
            {"decoder": {**SPEC["decoder"], "n_layers": 1}},
            "the states of 2 layers are added after as many of the decoder, which has 1",
        ),
        *(
            ({name: {**SPEC[name], "block": "hyper_connected"}}, "have one residual stream")
            for name in ("image", "decoder")
        ),
        (
            {
                "decoder": {
                    "d_model": 16,
                    "position": {"kind": "rotary_multimodal_interleaved", "sections": [1, 1, 2]},
                }
            },
            "every third of 4 pairs is that of the row, .* not the 1 and 2 that `sections` says",
        ),
        (
            {
                "decoder": {
                    "d_model": 16,
                    "position": {"kind": "rotary_multimodal_interleaved", "sections": [2, 1, 2]},
                }
            },
            "`sections` has 5 pairs for 4 rotated ones",
        ),
    ],
)
def test_a_wrong_spec_is_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(changed(**tables))
