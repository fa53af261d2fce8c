"""A decoder whose text has images in it that are read as a whole and in tiles."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY_IMAGE_TEXT, randomized
from test_image_models import draw
from transformers.models.llava_next.modeling_llava_next import (
    get_anyres_image_grid_shape,
    unpad_image,
)

import zoo
from zoo.purpose import Tiling
from zoo.transformer import TiledImage

IMAGE_ID = 9
SPEC: dict[str, Any] = {
    **copy.deepcopy(TINY_IMAGE_TEXT),
    "builder": "tiled_image_text_decoder",
    "grids": [[1, 2], [2, 1], [2, 2]],
}
SPEC["image"]["embedding"]["image_size"] = 6
SPEC["image"]["position"]["max_length"] = 10
RANDOM = torch.Generator().manual_seed(1)
HIGH = TiledImage(torch.randn(3, 3, 6, 6, generator=RANDOM).double(), 30, 12)
"""Two tiles, one above the other, of 6 x 3 states. The image is 2.4 of them wide: none is cut."""
NARROW = TiledImage(torch.randn(3, 3, 6, 6, generator=RANDOM).double(), 30, 8)
"""It is 1.6 states wide: a column is cut at both sides."""
WIDE = TiledImage(torch.randn(3, 3, 6, 6, generator=RANDOM).double(), 4, 20)
"""It is 1.2 states high, of two tiles side by side: a row is cut above and below."""
WHOLE = TiledImage(torch.randn(1, 3, 6, 6, generator=RANDOM).double(), 30, 12)
N_STATES = {"HIGH": 9 + 6 * 4, "NARROW": 9 + 6 * 2, "WIDE": 9 + 1 * 7, "WHOLE": 10}
IMAGES = {"HIGH": HIGH, "NARROW": NARROW, "WIDE": WIDE, "WHOLE": WHOLE}


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(SPEC)


def of_tile(model: Any, tile: torch.Tensor) -> torch.Tensor:
    """The states of the patches of a tile, (3, 3, width)."""
    states = model.image(tile[None])[0][:, 1:]
    maps = model.projector
    mapped = maps.down_proj(torch.nn.functional.gelu(maps.up_proj(states)))
    return mapped[0].unflatten(0, (3, 3))


def test_the_states_of_images_by_loops(model: Any) -> None:
    columns = {"HIGH": range(3), "NARROW": range(1, 2), "WIDE": range(6), "WHOLE": range(0)}
    rows = {"HIGH": range(6), "NARROW": range(6), "WIDE": range(1, 2), "WHOLE": range(0)}
    read = model.read_images(list(IMAGES.values()))
    for (name, image), found in zip(IMAGES.items(), read, strict=True):
        whole, *tiles = (of_tile(model, tile) for tile in image.tiles)
        expected = [*whole.flatten(0, 1)]
        for row in rows[name]:
            for column in columns[name]:
                tile = tiles[row // 3 if name != "WIDE" else column // 3]
                expected.append(tile[row % 3, column % 3])
            expected.append(model.newline)
        if name == "WHOLE":
            expected.append(model.newline)
        torch.testing.assert_close(found, torch.stack(expected))
        assert len(found) == N_STATES[name]


def test_a_tensor_holds_images_that_are_read_whole(model: Any) -> None:
    tiles = torch.cat([HIGH.tiles[:1], WHOLE.tiles])
    found = model.read_images(tiles)
    expected = model.read_images([TiledImage(HIGH.tiles[:1], 1, 1), WHOLE])
    torch.testing.assert_close(found, expected)
    text = torch.tensor([[1, *[IMAGE_ID] * 10, 2], [*[IMAGE_ID] * 10, 5, 7]])
    output, maps = model(text, tiles, return_attention=True)
    assert len(maps.encoder) == 2
    assert maps.encoder[0].shape == (2, 2, 10, 10)
    ids, inserted = model.insert_images(text, tiles)
    torch.testing.assert_close(output, model.head(model.decode(ids, inserted=inserted)))


def test_the_grid_and_its_states_are_those_of_transformers() -> None:
    """Of many sizes of images, tiles and grids."""
    numbers = random.Random(0)
    for _ in range(2000):
        tile, side = numbers.choice([(336, 24), (384, 27), (12, 3)])
        grids = [
            (numbers.randint(1, 6), numbers.randint(1, 6)) for _ in range(numbers.randint(1, 9))
        ]
        size, most = (
            (numbers.randint(1, 3000), numbers.randint(1, 3000)),
            numbers.choice([None, 2, 9]),
        )
        found = Tiling(tuple(grids), tile, side, most)
        resolutions = [[tile * rows, tile * columns] for rows, columns in grids]
        grid = get_anyres_image_grid_shape(size, resolutions, tile)
        assert found.grid(*size) == grid
        states = torch.arange(side**2 * math.prod(grid)).view(1, side * grid[0], side * grid[1])
        kept = unpad_image(states, size)[0]
        assert torch.equal(states[0][found.kept(*size)], kept)
        shape = tuple(kept.shape)
        if most and (ratio := math.sqrt(kept.numel() / (most * side**2))) > 1.1:
            shape = (int(shape[0] // ratio), int(shape[1] // ratio))
        assert found.shape(*size) == shape


@pytest.mark.parametrize("cache", [True, False])
def test_generation_is_that_of_calls(cache: bool, model: Any) -> None:
    """Of prompts with two images, with one, and with none, together."""
    prompts = [
        [1, *[IMAGE_ID] * N_STATES["HIGH"], 3, *[IMAGE_ID] * N_STATES["WHOLE"]],
        [*[IMAGE_ID] * N_STATES["WIDE"], 7, 2],
        [1, 2, 3],
    ]
    images = [[HIGH, WHOLE], [WIDE], []]
    flat = [image for some in images for image in some]
    found = zoo.generate(model, prompts, images=flat, max_new_tokens=4, cache=cache)
    for prompt, some, one in zip(prompts, images, found, strict=True):
        ids = torch.tensor([prompt])
        for new in one.ids:
            scores = model(ids, some or None)[0, -1]
            assert int(scores.argmax()) == new
            ids = torch.cat([ids, torch.tensor([[new]])], 1)
            assert new != IMAGE_ID


def test_float32_images_are_converted(model: Any) -> None:
    prompt = [1, *[IMAGE_ID] * N_STATES["WIDE"], 3]
    image = WIDE.to(torch.float32)
    found = zoo.generate(model, [prompt], images=[image], max_new_tokens=2)
    exact = zoo.generate(model, [prompt], images=[image.to(torch.float64)], max_new_tokens=2)
    assert found == exact


WRONG: dict[str, tuple[Any, str]] = {
    "tiles alone": (HIGH.tiles[None], "images are .* = .*, not"),
    "a list of tensors": ([HIGH.tiles[0]], "image 0 is a `TiledImage`, not a Tensor"),
    "no list": ({}, "takes a list of images, each a `TiledImage`, not a dict"),
    "nothing": ([], "there are no images"),
    "another size": ([TiledImage(torch.ones(3, 3, 4, 4).double(), 3, 5)], "not .3, 3, 4, 4."),
    "numbers that are no floats": (
        [TiledImage(torch.ones(3, 3, 6, 6).int(), 3, 5)],
        "not torch.int",
    ),
    "no pixels": ([TiledImage(HIGH.tiles, 0, 5)], "image 0 has 0 x 5 pixels"),
    "too few tiles": (
        [TiledImage(HIGH.tiles[:2], 30, 12)],
        "an image of 30 x 12 pixels has 2 x 1 tiles and one of the whole, 3 together, and image 0 "
        "has 2",
    ),
    "other places": ([WHOLE], "33 places of the token 9, which are for 1 image|33 places"),
}


@pytest.mark.parametrize(("images", "message"), WRONG.values(), ids=WRONG)
def test_wrong_images(images: Any, message: str, model: Any) -> None:
    ids = [[1, *[IMAGE_ID] * 33, 2]]
    with pytest.raises((TypeError, ValueError), match=message):
        model(torch.tensor(ids), images)
    with pytest.raises(zoo.InputError, match=message):
        zoo.generate(model, ids, images=images, max_new_tokens=1)


def test_nan_is_refused_in_generation(model: Any) -> None:
    image = TiledImage(HIGH.tiles.clone(), HIGH.height, HIGH.width)
    image.tiles[2, 0, 0, 0] = math.nan
    with pytest.raises(zoo.InputError, match="image 0 holds numbers that are not finite"):
        zoo.generate(model, [[1, *[IMAGE_ID] * 33]], images=[image], max_new_tokens=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grids": []}, "`grids` must"),
        ({"grids": [[1, 0]]}, "must be greater than 0|at least 1"),
        ({"most_tiles": 0}, "`most_tiles` must"),
        ({"bidirectional": "image"}, "unknown key `bidirectional`"),
    ],
)
def test_a_wrong_spec_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec({**copy.deepcopy(SPEC), **changes})


def test_it_is_saved_and_loaded(model: Any, tmp_path: Path) -> None:
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors")
    text = torch.tensor([[1, *[IMAGE_ID] * 33, 2]])
    torch.testing.assert_close(loaded(text, [HIGH]), model(text, [HIGH]))


SETTINGS = {
    "image_processor_type": "LlavaNextImageProcessor",
    "size": {"shortest_edge": 6},
    "crop_size": {"height": 6, "width": 6},
}


@pytest.mark.parametrize(
    ("builder", "grids", "message"),
    [
        ("tiled", [[6, 12], [12, 6], [12, 12]], None),
        ("tiled", [[6, 12], [12, 6]], r"do not become the tiles .* `image_grid_pinpoints`: \[\[6,"),
        ("whole", [[6, 12]], "images become tiles, and image-text takes them whole"),
    ],
)
def test_the_settings_must_make_the_tiles_of_the_model(
    builder: str, grids: list[list[int]], message: str | None, project: Path
) -> None:
    spec = copy.deepcopy(SPEC)
    if builder == "whole":
        del spec["grids"]
        spec["builder"] = "image_text_decoder"
    zoo.save(zoo.build(spec), "own")
    settings = {**SETTINGS, "image_grid_pinpoints": grids}
    Path("own/preprocessor_config.json").write_text(json.dumps(settings))
    text_model, image = zoo.TextModel.load("own"), draw("one.png")
    if message is None:
        (found,) = text_model.run(["1 9 2"], images=[[image]], max_new_tokens=2)
        assert len(found["ids"]) == 2
        return
    with pytest.raises(zoo.WeightsError, match="(?s)" + message):
        text_model.run(["1 9 2"], images=[[image]], max_new_tokens=2)
