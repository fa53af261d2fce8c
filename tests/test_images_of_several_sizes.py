"""Several images of other sizes in one text, against `transformers`: the states of each image, and
the scores, of models with a token after each row of states, and of those that tell apart rows and
columns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families.cases import all_cases
from families.checkpoints import make_model, save
from families.outputs import images_of_any_size, padded_images

import zoo

IMAGE_ID, ROW_ID, END_ID = 90, 91, 92
SIZES = [(8, 16), (4, 4), (12, 8), (4, 20)]
"""In pixels, of which each state has 4 x 4."""


def written(height: int, width: int) -> list[int]:
    """The ids that stand for an image."""
    rows = [[*[IMAGE_ID] * (width // 4), ROW_ID] for _ in range(height // 4)]
    return [*[id_ for row in rows for id_ in row][:-1], END_ID]


@pytest.mark.parametrize("name", ["llava.pixtral", "mistral3", "mistral3.ministral3"])
@torch.no_grad()
def test_several_sizes_in_one_text(name: str, tmp_path: Path) -> None:
    case = all_cases()[name]
    scale = 6 / 4 if name == "mistral3.ministral3" else 1  # of larger squares
    random = torch.Generator().manual_seed(1)
    images = [
        torch.randn(3, int(scale * height), int(scale * width), generator=random).double()
        for height, width in SIZES
    ]
    texts = [[5, *written(*SIZES[0]), 6, *written(*SIZES[1]), *written(*SIZES[2]), 7, 8]]
    texts += [[9, *written(*SIZES[3]), 10]]
    longest = max(map(len, texts))
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    ids = torch.tensor([text + [1] * (longest - len(text)) for text in texts])

    theirs = make_model(case)
    save(theirs, case, tmp_path / "original")
    theirs = theirs.double()
    given = padded_images(images)
    pixels, sizes = given["pixel_values"].double(), given["image_sizes"]
    layer = {"vision_feature_layer": theirs.config.vision_feature_layer}
    if hasattr(theirs.config, "vision_feature_select_strategy"):
        layer["vision_feature_select_strategy"] = theirs.config.vision_feature_select_strategy
    states = theirs.model.get_image_features(pixels, image_sizes=sizes, **layer).pooler_output
    scores = theirs(ids, pixel_values=pixels, image_sizes=sizes, attention_mask=mask).logits

    zoo.import_folder(tmp_path / "original", tmp_path / "model")
    ours = zoo.load(tmp_path / "model", dtype=torch.float64)
    # transformers computes norms, softmaxes and angles in float32 whatever the dtype.
    near = {"rtol": 1e-5, "atol": 5e-6}
    for found, wanted in zip(ours.read_images(images), states, strict=True):
        torch.testing.assert_close(found, wanted, **near)
    found = ours(ids, images, target_mask=mask.bool())
    torch.testing.assert_close(found[mask.bool()], scores[mask.bool()], **near)
    # An image is read as if it were the only one.
    (alone,) = ours.read_images(images[2:3])
    torch.testing.assert_close(alone, ours.read_images(images)[2])


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe"])
@torch.no_grad()
def test_several_grids_in_one_text(name: str, tmp_path: Path) -> None:
    """And what is generated after it."""
    case = all_cases()[name]
    random = torch.Generator().manual_seed(1)
    images = [torch.randn(3, *size, generator=random).double() for size in SIZES]
    counts = [height * width // 16 for height, width in SIZES]
    one, other, third, last = ([IMAGE_ID] * count for count in counts)
    # Images that follow each other at once, `transformers` takes for one.
    ids = torch.tensor([[5, *one, 6, *other, 10, *third, 7, *last, 8, 9]])

    theirs = make_model(case)
    save(theirs, case, tmp_path / "original")
    theirs = theirs.double().eval()
    theirs.set_experts_implementation("eager")  # others know no float64
    given = images_of_any_size(images, theirs.config)
    read = theirs.model.get_image_features(given["pixel_values"], given["image_grid_thw"])
    given["mm_token_type_ids"] = (ids == IMAGE_ID).long()
    scores = theirs(ids, **given).logits
    generated = theirs.generate(
        ids, **given, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
    )

    zoo.import_folder(tmp_path / "original", tmp_path / "model")
    ours = zoo.load(tmp_path / "model", dtype=torch.float64).eval()
    near = {"rtol": 1e-5, "atol": 5e-6}
    for found, wanted in zip(ours.read_images(images), read.pooler_output, strict=True):
        torch.testing.assert_close(found, wanted, **near)
    torch.testing.assert_close(ours(ids, images), scores, **near)
    (found,) = zoo.generate(ours, ids[0].tolist(), images=images, max_new_tokens=8)
    assert list(found.ids) == generated[0, ids.shape[1] :].tolist()
