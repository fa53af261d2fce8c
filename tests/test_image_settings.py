"""How images become pixels: the settings of published models, against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torchvision_processors import torchvision_processor
from transformers.image_processing_utils import get_size_dict

from zoo.errors import InputError, WeightsError
from zoo.images.files import read_image
from zoo.images.pixels import parts_of, pixels_of, square_of
from zoo.images.published import read_image_settings
from zoo.images.settings import ImageSettings
from zoo.transformer import TiledImage

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PUBLISHED: dict[str, dict[str, Any]] = {
    "vit": {"feature_extractor_type": "ViTFeatureExtractor", "size": 22, "resample": 2},
    "vit of today": {
        "image_processor_type": "ViTImageProcessorFast",
        "size": {"height": 22, "width": 26},
        "crop_size": None,
        "device": None,
        "do_convert_rgb": None,
    },
    "deit": {
        "feature_extractor_type": "DeiTFeatureExtractor",
        "size": 25,
        "crop_size": 22,
        "resample": 3,
        **IMAGENET,
    },
    "clip": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 22, "crop_size": 22},
    "clip of today": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 22},
        "crop_size": {"height": 21, "width": 23},
        "resample": 3,
    },
    "dinov2": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 26},
        "crop_size": {"height": 23, "width": 23},
        **IMAGENET,
    },
    "blip": {"image_processor_type": "BlipImageProcessor", "size": {"height": 22, "width": 22}},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 22, "width": 22}},
    "siglip, the shorter side": {"image_processor_type": "SiglipImageProcessor", "size": 22},
    "gemma3": {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 24, "width": 20},
        "do_pan_and_scan": None,
        "pan_and_scan_max_num_crops": None,
        "image_seq_length": 4,
    },
    "qwen2_vl": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "min_pixels": 36,
        "max_pixels": 1300,
        "patch_size": 2,
        "merge_size": 3,
        "temporal_patch_size": 2,
        **IMAGENET,
    },
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 1024, "longest_edge": 16384},
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "qwen2_vl of today": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 1600, "longest_edge": 2500},
        "patch_size": 4,
        "temporal_patch_size": 1,
    },
    "pixtral": {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": {"height": 4, "width": 4},
        "size": {"longest_edge": 100},
    },
    "pixtral of today": {
        "image_processor_type": "PixtralImageProcessorFast",
        "patch_size": 14,
        "size": {"height": 100, "width": 20},
        "do_pad": None,
        "do_center_crop": None,
        **IMAGENET,
    },
    "gemma4": {
        "image_processor_type": "Gemma4ImageProcessor",
        "image_seq_length": 70,
        "max_soft_tokens": 70,
        "patch_size": 2,
        "do_normalize": False,
    },
    "gemma4, normalised": {
        "image_processor_type": "Gemma4ImageProcessorFast",
        "max_soft_tokens": 140,
        "pooling_kernel_size": 2,
        "patch_size": 1,
        "do_normalize": True,
        **IMAGENET,
    },
    "idefics3, not split": {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 40},
        "max_image_size": {"longest_edge": 12},
        "do_image_splitting": False,
    },
    "internvl, not cut": {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "processor_class": "InternVLProcessor",
        "size": {"height": 24, "width": 20},
        "crop_size": None,
        "crop_to_patches": False,
        "do_center_crop": None,
        "min_patches": 1,
        "max_patches": 12,
        **IMAGENET,
    },
    "one tile at most": {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": 22,
        "crop_size": 12,
        "do_center_crop": True,
        "crop_to_patches": True,
        "max_patches": 1,
    },
    "beit": {
        "feature_extractor_type": "BeitFeatureExtractor",
        "size": 26,
        "crop_size": 21,
        "do_center_crop": True,
        "do_reduce_labels": False,
    },
    "crop larger than the image": {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "do_center_crop": True,
        "crop_size": {"height": 61, "width": 70},
    },
    "crop larger on one side": {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": False,
        "crop_size": {"height": 5, "width": 70},
    },
    "scaled otherwise": {
        "image_processor_type": "ViTImageProcessor",
        "size": [22, 24],
        "rescale_factor": 0.00784313725490196,
        "image_mean": 1.0,
        "image_std": 1.0,
    },
    "not scaled": {"image_processor_type": "ViTImageProcessor", "size": 22, "do_rescale": False},
    "not normalised": {"image_processor_type": "ViTImageProcessor", "do_normalize": False},
    "as it is": {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "do_rescale": False,
        "do_normalize": False,
    },
    **{
        f"filter {number}": {
            "image_processor_type": "CLIPImageProcessor",
            "resample": number,
            "size": 22,
            "crop_size": 22,
        }
        for number in range(6)
    },
}
MODEL_TYPES = ["vit", "vit_msn", "vit_mae", "ijepa", "trocr", "deit", "beit", "data2vec-vision"]
MODEL_TYPES += ["clip", "metaclip_2", "chinese_clip", "siglip", "dinov2", "gemma3", "paligemma"]
MODEL_TYPES += ["idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "mistral3", "blip"]
MODEL_TYPES += ["qwen3_vl", "qwen3_5", "qwen3_5_moe", "internvl", "gemma4"]
SIZES = [(37, 53), (53, 37), (22, 22), (7, 9), (1, 1), (300, 3)]


def drawn(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Noise over a gradient, so that neither a shift nor another filter goes unnoticed."""
    random = np.random.default_rng(height * width)
    slope = np.linspace(0, 155, height * width).reshape(height, width, 1)
    values = slope + random.integers(0, 100, (height, width, 4))
    return Image.fromarray(values.astype(np.uint8), "RGBA").convert(mode)


def settings_in(folder: Path, data: Any, name: str = "preprocessor_config.json") -> ImageSettings:
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return read_image_settings(folder).settings


def their_pixels(processor: Any, image: Image.Image) -> np.ndarray:
    """What an image processor makes of an image: of one that cuts it into patches, these put
    together, as they are in the first frame."""
    made = processor(images=image, return_tensors="np")
    pixels: np.ndarray = made["pixel_values"]
    if "image_position_ids" in made:
        n_real, side = int((made["image_position_ids"][0, :, 0] >= 0).sum()), processor.patch_size
        columns = int(made["image_position_ids"][0, :, 0].max()) + 1
        cells = pixels[0, :n_real].reshape(-1, columns, side, side, 3)
        return cells.transpose(4, 0, 2, 1, 3).reshape(3, -1, columns * side)
    if "image_grid_thw" not in made:
        return pixels[0]
    merge, side = processor.merge_size, processor.patch_size
    _, rows, columns = made["image_grid_thw"][0]
    squares = (rows // merge, columns // merge, merge, merge)
    patches = pixels.reshape(*squares, 3, processor.temporal_patch_size, side, side)
    assert (patches == patches[:, :, :, :, :, :1]).all()
    whole = patches[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6)
    return whole.reshape(3, rows * side, columns * side)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PUBLISHED)
def test_pixels_are_those_of_transformers(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    settings = settings_in(tmp_path, PUBLISHED[name])
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert type(processor).__name__.endswith("ImageProcessorPil")
    image = drawn(*size)
    expected = their_pixels(processor, image)
    if expected.ndim == 4:  # the images of one text
        (expected,) = expected
    found = pixels_of(image, settings)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("processor", ["Idefics3", "SmolVLM"])
@pytest.mark.parametrize("do_resize", [True, False])
def test_parts_are_those_of_transformers(
    do_resize: bool, processor: str, size: tuple[int, int], tmp_path: Path
) -> None:
    settings = settings_in(
        tmp_path,
        {
            "image_processor_type": f"{processor}ImageProcessor",
            "size": {"longest_edge": 40},
            "max_image_size": {"longest_edge": 12},
            "do_resize": do_resize,
            "video_sampling": {"fps": 1},
        },
    )
    made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = drawn(*size)
    expected = made(images=image, return_tensors="np", return_row_col_info=True)
    found = parts_of(image, settings)
    assert ([[found.rows]], [[found.columns]]) == (expected["rows"], expected["cols"])
    assert len(found.pixels) == found.rows * found.columns + 1
    pixels = torch.stack(found.pixels).numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "size", [*SIZES, (40, 40), (60, 20)], ids=lambda size: "x".join(map(str, size))
)
@pytest.mark.parametrize(("fewest", "most"), [(1, 12), (1, 4), (3, 3), (5, 40)])
@pytest.mark.parametrize("do_resize", [True, False])
def test_tiles_are_those_of_transformers(
    do_resize: bool, fewest: int, most: int, size: tuple[int, int], tmp_path: Path
) -> None:
    """Of squares, of which one and four are of the same shape, and of others."""
    for sides in ({"height": 12, "width": 12}, {"height": 10, "width": 14}):
        settings = settings_in(
            tmp_path,
            {
                "image_processor_type": "GotOcr2ImageProcessor",
                "size": sides,
                "crop_to_patches": True,
                "min_patches": fewest,
                "max_patches": most,
                "do_resize": do_resize,
                **IMAGENET,
            },
        )
        made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
        image = drawn(*size)
        expected = made(images=image, return_tensors="np")
        found = parts_of(image, settings)
        assert expected["num_patches"] == [len(found.pixels)]
        assert settings.output_size == tuple(sides.values())
        pixels = torch.stack(found.pixels).numpy()
        np.testing.assert_allclose(pixels, expected["pixel_values"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [*SIZES, (40, 40), (12, 12), (13, 11), (9, 24), (100, 50)])
@pytest.mark.parametrize("most", [1, 4, 16])
@pytest.mark.parametrize("largest", [False, True])
def test_padded_tiles_are_those_of_transformers(
    largest: bool, most: int, size: tuple[int, int], tmp_path: Path
) -> None:
    stated = {"size": {"height": 12, "width": 12}, "max_patches": most, **IMAGENET}
    stated |= {"resize_to_max_canvas": largest}
    made = torchvision_processor("llama4", "Llama4ImageProcessor")(**stated)
    made.save_pretrained(tmp_path)
    settings = read_image_settings(tmp_path).settings
    image = drawn(*size)
    expected = made(images=image, return_tensors="pt")
    found = parts_of(image, settings)
    (grid,) = expected["aspect_ratios"].tolist()
    assert (found.rows, found.columns) == (tuple(grid) if grid != [1, 1] else (0, 0))
    assert settings.output_size == (12, 12)
    assert torch.stack(found.pixels).equal(expected["pixel_values"].float())


@pytest.mark.parametrize("size", [*SIZES, (40, 40), (12, 12), (13, 11), (9, 24), (100, 50)])
@pytest.mark.parametrize("most", [1, 4, 12])
@pytest.mark.parametrize("cut", [False, True])
def test_tiles_of_the_closest_size_are_those_of_transformers(
    cut: bool, most: int, size: tuple[int, int], tmp_path: Path
) -> None:
    stated = {"size": {"height": 12, "width": 12}, "max_patches": most, "crop_to_patches": cut}
    made = torchvision_processor("cohere2_vision", "Cohere2VisionImageProcessor")(**stated)
    made.save_pretrained(tmp_path)
    image = drawn(*size)
    expected = made(images=image, return_tensors="pt")
    found = parts_of(image, read_image_settings(tmp_path).settings)
    assert expected["num_patches"].tolist() == [len(found.pixels)]
    pixels = torch.stack(found.pixels)
    torch.testing.assert_close(pixels, expected["pixel_values"], rtol=0, atol=2e-6)


OWN = {"order", "canvas", "precision", "min_pixels", "max_pixels"}
"""What no file states so."""
LARGE = {
    "encoder_patch_size": 2,
    "downsample_factor": 3,
    "min_image_tokens": 4,
    "max_image_tokens": 12,
    "tile_size": 18,
    "max_tiles": 6,
}


@pytest.mark.parametrize(
    "size", [(37, 53), (53, 37), (22, 22), (7, 9), (1, 1), (20, 3), (90, 10), (26, 34), (60, 60)]
)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("fewest", [2, 5])
def test_tiles_of_large_images_are_those_of_transformers(
    fewest: int, split: bool, size: tuple[int, int], tmp_path: Path
) -> None:
    """The image of the whole has another size than the tiles. `transformers` counts columns first
    where it says rows, and means rows."""
    stated = {**LARGE, "min_tiles": fewest, "do_image_splitting": split, **IMAGENET}
    made = torchvision_processor("lfm2_vl", "Lfm2VlImageProcessor")(**stated)
    made.save_pretrained(tmp_path)
    settings = read_image_settings(tmp_path).settings
    image = drawn(*size)
    expected = made(images=image, return_tensors="pt", return_row_col_info=True)
    found = parts_of(image, settings)
    n_tiles = int(expected["image_rows"] * expected["image_cols"])
    assert found.rows * found.columns == (n_tiles if n_tiles > 1 else 0)
    assert settings.output_size is None
    shapes = expected["spatial_shapes"].tolist()
    assert [[side // 2 for side in one.shape[1:]] for one in found.pixels] == shapes
    for pixels, theirs in zip(found.pixels, expected["pixel_values"], strict=True):
        rows, columns = (side // 2 for side in pixels.shape[1:])
        patches = theirs[: rows * columns].view(rows, columns, 2, 2, 3).permute(4, 0, 2, 1, 3)
        whole = patches.reshape(pixels.shape)
        torch.testing.assert_close(pixels, whole, rtol=0, atol=1e-6)


def test_a_large_image_that_is_too_long(tmp_path: Path) -> None:
    """Of so many squares, `transformers` cuts off the last."""
    settings = settings_in(tmp_path, {"image_processor_type": "Lfm2VlImageProcessor", **LARGE})
    with pytest.raises(InputError, match="would become 60 x 1 squares of patches, more than 12"):
        parts_of(drawn(1, 300), settings)


GRIDS = [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36]]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "stated",
    [
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 12},
            "crop_size": {"height": 12, "width": 12},
            "aspect_ratio_setting": "anyres",
            "do_pad": True,
        },
        {
            "image_processor_type": "LlavaOnevisionImageProcessorFast",
            "size": {"height": 12, "width": 12},
            "crop_size": None,
            "do_pad": False,
        },
    ],
    ids=["next", "onevision"],
)
def test_images_with_tiles_are_those_of_transformers(
    stated: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    settings = settings_in(tmp_path, {**stated, "image_grid_pinpoints": GRIDS, **IMAGENET})
    made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = drawn(*size)
    expected = made(images=image, return_tensors="np")
    (found,) = parts_of(image, settings).pixels
    assert isinstance(found, TiledImage)
    assert [[found.height, found.width]] == np.array(expected["image_sizes"]).tolist()
    np.testing.assert_allclose(found.tiles, expected["pixel_values"][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_squares_are_those_of_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    """Of several images of a text, LLaVA-OneVision reads each without tiles."""
    stated: dict[str, Any] = {"image_processor_type": "LlavaOnevisionImageProcessor", **IMAGENET}
    stated |= {"image_grid_pinpoints": GRIDS, "size": {"height": 12, "width": 12}}
    settings = settings_in(tmp_path, stated)
    made = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = drawn(*size)
    expected = made(images=[[image, drawn(5, 5)]], return_tensors="np")
    (found,) = square_of(image, settings).pixels
    assert isinstance(found, TiledImage)
    assert (found.height, found.width) == size
    np.testing.assert_allclose(found.tiles, expected["pixel_values"][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("resample", [2, 3])
def test_dinov3_resizes_scaled_values(resample: int, size: tuple[int, int], tmp_path: Path) -> None:
    """transformers has it with torchvision alone. Pillow filters channels of floats in the same
    way, without rounding to bytes."""
    made = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": 22, "resample": resample}
    settings, image = settings_in(tmp_path, made), drawn(*size)
    expected = []
    for channel, mean, std in zip(image.split(), *IMAGENET.values(), strict=True):
        floats = Image.fromarray(np.asarray(channel, np.float32) / 255)
        resized = np.asarray(floats.resize((22, 22), resample))
        expected.append((resized - mean) / std)
    found = pixels_of(image, settings).numpy()
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "processor",
    [
        *("CLIP", "Bit", "ViT", "DeiT", "Beit", "Siglip", "Gemma3", "Idefics3", "SmolVLM"),
        *("Qwen2VL", "Pixtral", "GotOcr2", "LlavaNext", "LlavaOnevision", "Gemma4"),
    ],
)
def test_the_table_agrees_with_transformers(processor: str, tmp_path: Path) -> None:
    """What counts where a file is silent, of every image processor that transformers has without
    torchvision."""
    stated: dict[str, Any] = {"image_processor_type": f"{processor}ImageProcessor"}
    if processor == "LlavaNext":  # whose grids are not of its tiles, so that a file must state one
        stated["image_grid_pinpoints"] = [[224, 448]]
    own = settings_in(tmp_path, stated)
    theirs = getattr(transformers, f"{processor}ImageProcessorPil")()
    several = ("Pixtral", "LlavaNext", "LlavaOnevision")
    unread = {"do_pad"} if processor in several else set()  # of several images in one tensor
    if processor != "GotOcr2":
        unread |= {"min_patches", "max_patches"}  # of tiles
    unread |= stated.keys() | LARGE.keys() | {"min_tiles", "max_pixels_tolerance", "use_thumbnail"}
    for key in ImageSettings.model_fields.keys() - OWN - unread:
        found, expected = getattr(own, key), getattr(theirs, key, None)
        if key == "size" and own.merge_size is not None:
            assert dict(expected) == {
                "shortest_edge": own.min_pixels,
                "longest_edge": own.max_pixels,
            }
            continue
        if key == "patch_size" and found is not None:
            found, expected = {"height": found, "width": found}, dict(get_size_dict(expected))
        if key == "image_grid_pinpoints" and expected is not None:
            expected = tuple(map(tuple, expected))
        if key in ("size", "crop_size", "max_image_size"):
            found = found and found.model_dump(exclude_none=True)
            expected = expected and dict(expected)
        assert found == expected or (found is False and expected is None), key


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama4", "Llama4ImageProcessor"),
        ("lfm2_vl", "Lfm2VlImageProcessor"),
        ("cohere2_vision", "Cohere2VisionImageProcessor"),
    ],
)
def test_the_table_agrees_with_those_of_torchvision(model: str, name: str, tmp_path: Path) -> None:
    own = settings_in(tmp_path, {"image_processor_type": name}).model_dump(exclude_none=True)
    theirs = torchvision_processor(model, name)()
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "preprocessor_config.json").read_text())
    both = own.keys() & written.keys()
    assert len(both) > 8
    for key in both - {"do_pad", "patch_size"}:  # of several images in one tensor, and of texts
        found = list(own[key]) if isinstance(own[key], tuple) else own[key]
        assert found == written[key], key
    read_image_settings(tmp_path)


@pytest.mark.parametrize(
    "processor",
    [
        *("CLIP", "ViT", "DeiT", "Beit", "Bit", "Siglip", "Gemma3", "Gemma4", "Qwen2VL", "Pixtral"),
        "GotOcr2",
    ],
)
def test_what_transformers_saves_is_read(processor: str, tmp_path: Path) -> None:
    made = getattr(transformers, f"{processor}ImageProcessorPil")()
    made.save_pretrained(tmp_path)
    image = drawn(37, 53)
    expected = their_pixels(made, image)
    found = pixels_of(image, read_image_settings(tmp_path).settings)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_type_of_the_model_says_what_the_settings_do_not(
    model_type: str, tmp_path: Path
) -> None:
    """Some older files name no image processor."""
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3]}')
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    config = (tmp_path / "config.json").read_text()
    found = read_image_settings(tmp_path, config).settings
    image = drawn(37, 53)
    expected = their_pixels(processor, image)
    pixels = torch.stack(parts_of(image, found).pixels).numpy()
    np.testing.assert_allclose(pixels, expected.reshape(pixels.shape), rtol=0, atol=1e-6)


def test_the_settings_of_a_whole_processor_count_first(tmp_path: Path) -> None:
    """transformers 5 saves those of images inside of those of all inputs."""
    own = {"image_processor_type": "ViTImageProcessor", "size": 30}
    settings_in(tmp_path, own)
    other = {"image_processor": own | {"size": 40}, "processor_class": "CLIPProcessor"}
    found = settings_in(tmp_path, other, "processor_config.json")
    assert found.output_size == (40, 40)
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert theirs.size["height"] == 40
    other["image_processor"]["sise"] = 3  # type: ignore[index]
    (tmp_path / "processor_config.json").write_text(json.dumps(other, indent=2))
    with pytest.raises(WeightsError) as caught:
        read_image_settings(tmp_path)
    assert "processor_config.json:5:5: error: `sise` is a setting" in str(caught.value)
    del other["image_processor"]
    assert settings_in(tmp_path, other, "processor_config.json").output_size == (30, 30)


VIT = '{"image_processor_type": "ViTImageProcessor", '
PIXTRAL = '{"image_processor_type": "PixtralImageProcessor", '
NEXT = '{"image_processor_type": "LlavaNextImageProcessor", '
TILES = '{"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": true, '
LLAMA4 = '{"image_processor_type": "Llama4ImageProcessor", '
LFM = '{"image_processor_type": "Lfm2VlImageProcessor", '
WRONG = {
    "a setting of nobody": (VIT + '"do_rezise": true}', "1:47: error: `do_rezise` is a setting of"),
    "a step that is null": (VIT + '"do_resize": null}', "1:47: error: `do_resize` is null, which"),
    "a step of the image processor that is null": (
        '{"image_processor_type": "CLIPImageProcessor", "do_center_crop": null}',
        "`do_center_crop` is null",
    ),
    "padding": (VIT + '"do_pad": true}', "`do_pad` and `do_image_splitting` need a"),
    "parts that are panned": (
        '{"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": true}',
        "`do_pan_and_scan` is not supported",
    ),
    "parts of no size": (VIT + '"do_image_splitting": true}', "need a `max_image_size`"),
    "parts of two sizes": (
        '{"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"height": 3, '
        '"width": 4}}',
        "`max_image_size` must state `longest_edge`",
    ),
    "the longer side alone": (VIT + '"size": {"longest_edge": 4}}', "goes with a `max_image_size`"),
    "a value of another kind": (VIT + '"do_resize": 1}', "`do_resize` must be `true` or `false`"),
    "a filter that there is not": (VIT + '"resample": 7}', "`resample` must be at most 5"),
    "a filter that is a boolean": (VIT + '"resample": true}', "`resample` must be an integer"),
    "a scale that leaves nothing": (VIT + '"rescale_factor": 0}', "`rescale_factor` must be"),
    "a scale beyond float32": (VIT + '"rescale_factor": 1e308}', "`rescale_factor` must be"),
    "a mean beyond float32": (
        VIT + '"image_mean": 1e300}',
        "`image_mean.0` must be at most 1000000",
    ),
    "division by nothing": (
        VIT + '"image_std": 1e-300}',
        "`image_std.0` must be at least 0.000001",
    ),
    "the longer side": (
        VIT + '"size": {"shortest_edge": 3, "longest_edge": 4}}',
        "`size` must state `height` and `width`, or",
    ),
    "one side": (VIT + '"size": {"height": 3}}', "`size` must state `height` and `width`, or"),
    "a shorter side of any": (
        PIXTRAL + '"size": {"shortest_edge": 3}}',
        "must state `longest_edge`",
    ),
    "patches that are no squares": (
        PIXTRAL + '"patch_size": {"height": 3, "width": 4}}',
        "json:1:51: error: `patch_size` must be as high as wide",
    ),
    "cropped images of any size": (
        PIXTRAL + '"do_center_crop": true, "crop_size": 12}',
        "images of any size are neither cropped nor divided",
    ),
    "a unit of another processor": (PIXTRAL + '"merge_size": 2}', "`merge_size` is a setting of"),
    "no pixel": (VIT + '"size": 0}', "`size.height` must be greater than 0"),
    "two channels": (
        VIT + '"image_mean": [0.5, 0.5]}',
        "`image_mean` must be a number, or three of",
    ),
    "more pixels than are read": (
        VIT + '"size": {"height": 9460, "width": 9459}, "do_center_crop": true, "crop_size": 12}',
        "json:1:47: error: `size` makes 9,460 x 9,459 pixels of an image, more than 89,478,485",
    ),
    "a side of more pixels than are read": (
        VIT + '"size": {"shortest_edge": 9460}}',
        "`size` makes 9,460 x 9,460 pixels of an image, more than 89,478,485",
    ),
    "division by zero": (VIT + '"image_std": [0.5, 0, 0.5]}', "`image_std.1` must be at least"),
    "a crop of no size": (VIT + '"do_center_crop": true}', "`do_center_crop` needs a `crop_size`"),
    "an image processor of another model": (
        '{"image_processor_type": "Siglip2ImageProcessor"}',
        "1:2: error: the image processor `Siglip2ImageProcessor` is not supported",
    ),
    "no image processor": ('{"size": 3}', "it does not state `image_processor_type`"),
    "a name of another kind": ('{"image_processor_type": 3}', "the image processor `3` is not"),
    "the order": (VIT + '"order": "scale_first"}', "`order` is a setting of images that is not"),
    "scaled values without scaling": (
        '{"image_processor_type": "DINOv3ViTImageProcessor", "do_rescale": false}',
        "this image processor resizes scaled values",
    ),
    "patches of another image processor": (
        VIT + '"patch_size": 2}',
        "1:47: error: `patch_size` is a setting of images that is not supported",
    ),
    "a size that is no number of pixels": (
        '{"image_processor_type": "Qwen2VLImageProcessor", "size": {"height": 30, "width": 30}}',
        "`size` of images of any size must state numbers of pixels",
    ),
    "no most pixels": (
        '{"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 30}}',
        "images of any size need a `max_pixels`",
    ),
    "a crop of any size": (
        '{"image_processor_type": "Qwen2VLImageProcessor", "do_pad": true}',
        "images of any size are neither cropped, nor divided, nor padded",
    ),
    "tiles of another image processor": (
        VIT + '"crop_to_patches": true}',
        "1:47: error: `crop_to_patches` is a setting of images that is not supported",
    ),
    "tiles of two sizes": (
        NEXT + '"crop_size": {"height": 112, "width": 112}}',
        "`size` and `crop_size` must be those of one square, which is a tile",
    ),
    "tiles of a size that depends on the image": (
        NEXT + '"size": {"longest_edge": 224}}',
        "`size` and `crop_size` must be those of one square, which is a tile",
    ),
    "tiles that are cut": (
        NEXT + '"image_grid_pinpoints": [[224, 448], [300, 224]]}',
        "`image_grid_pinpoints` must state whole numbers of tiles of 224 pixels",
    ),
    "no tiles": (NEXT + '"image_grid_pinpoints": []}', "must state whole numbers of tiles of 224"),
    "tiles of one side": (NEXT + '"image_grid_pinpoints": [224]}', "`image_grid_pinpoints.0`"),
    "grids of more pixels than are read": (
        NEXT + '"image_grid_pinpoints": [[224000, 448]]}',
        "`image_grid_pinpoints` states more than 89,478,485 pixels",
    ),
    "tiles of no size": (
        TILES + '"size": {"shortest_edge": 30}}',
        "tiles need a `size` with `height` and `width`",
    ),
    "padded tiles that are no squares": (
        LLAMA4 + '"size": {"height": 12, "width": 14}}',
        "`size` must be that of a square",
    ),
    "padded tiles that are not resized": (
        LLAMA4 + '"do_resize": false}',
        "images are resized before they become tiles",
    ),
    "large images with more squares at least than at most": (
        LFM + '"min_image_tokens": 300}',
        "`min_image_tokens` must not be more than `max_image_tokens`",
    ),
    "large images with more tiles at least than at most": (
        LFM + '"min_tiles": 11}',
        "`min_tiles` must not be more than `max_tiles`",
    ),
    "tiles of large images that are no whole squares": (
        LFM + '"tile_size": 500}',
        "`tile_size` must be a multiple of 32",
    ),
    "large images of too many pixels": (
        LFM + '"max_tiles": 1000}',
        "make more than",
    ),
    "large images in tiles alone": (
        LFM + '"use_thumbnail": false}',
        "tiles without an image of the whole are not read",
    ),
    "more tiles at least than at most": (
        TILES + '"min_patches": 3, "max_patches": 2}',
        "`min_patches` must not be more than `max_patches`",
    ),
    "more tiles than are cut": (
        TILES + '"max_patches": 1001}',
        "`max_patches` must be at most 1000",
    ),
    "tiles of more pixels than are read": (
        TILES + '"max_patches": 607}',
        "607 tiles (`max_patches`) of 384 x 384 pixels have more than 89,478,485",
    ),
    "no object": ("[]", "an object is expected"),
    "no JSON": ("{", "not JSON"),
    "NaN": (VIT + '"rescale_factor": NaN}', "NaN"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        settings_in(tmp_path, text)
    assert message in str(caught.value)
    assert str(tmp_path / "preprocessor_config.json") in str(caught.value)


def test_what_is_null_is_not_written(tmp_path: Path) -> None:
    """Newer versions of `transformers` write null for what an image processor does not have."""
    keys = ("do_center_crop", "crop_size", "do_pad", "size_divisor", "image_mean", "resample")
    null = dict.fromkeys(keys)
    found = settings_in(tmp_path, {"image_processor_type": "ViTImageProcessor", **null})
    assert found == settings_in(tmp_path, {"image_processor_type": "ViTImageProcessor"})


def test_as_many_pixels_as_are_read(tmp_path: Path) -> None:
    found = settings_in(tmp_path, VIT + '"size": {"height": 9459, "width": 9459}}')
    assert found.output_size == (9459, 9459)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        settings_in(tmp_path, VIT + '"crop": 3, "size": "big", "resample": -1}')
    assert [problem.message.split("`")[1] for problem in caught.value.problems] == [
        "crop",
        "size",
        "resample",
    ]


def test_an_image_that_is_too_long(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"})
    assert pixels_of(drawn(1, 200), settings).shape == (3, 28, 812)
    with pytest.raises(InputError, match="one side of 201 x 1 pixels is more than 200 times"):
        pixels_of(drawn(1, 201), settings)
    settings = settings_in(tmp_path, {"image_processor_type": "PixtralImageProcessor"})
    assert pixels_of(drawn(2, 2048), settings).shape == (3, 16, 1024)
    with pytest.raises(InputError, match="the image would become 1,024 x 0 pixels"):
        pixels_of(drawn(1, 1025), settings)


def test_a_folder_without_settings(tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError, match=r"there is no preprocessor_config\.json, which says how"
    ):
        read_image_settings(tmp_path)


def test_modes_become_rgb_as_in_the_pipelines(tmp_path: Path) -> None:
    """Also where that loses something: the transparent part of an image is shown, and 16 bits of
    grey are cut at 255."""
    grey = (np.arange(35 * 22).reshape(22, 35) * 80).astype(np.uint16)
    palette = drawn(22, 35).quantize(16)
    palette.info["transparency"] = 3
    images = {
        **{mode: drawn(22, 35, mode) for mode in ("1", "L", "LA", "RGBA", "CMYK", "YCbCr")},
        "palette": palette,
        "16 bits": Image.fromarray(grey),
        "32 bits": Image.fromarray(grey.astype(np.int32)),
        "floats": Image.fromarray(grey.astype(np.float32)),
    }
    for name, image in images.items():
        path = tmp_path / ("a.png" if name in ("palette", "16 bits", "LA", "RGBA") else "a.tiff")
        image.save(path)
        expected = transformers.image_utils.load_image(str(path))
        found = read_image(path)
        assert found.mode == "RGB", name
        assert np.array_equal(np.asarray(found), np.asarray(expected)), name
        assert np.array_equal(np.asarray(read_image(path.read_bytes())), np.asarray(found)), name
    deep = np.asarray(read_image(images["16 bits"]))[..., 0]
    assert np.array_equal(deep, grey.clip(max=255))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_data_says(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    drawn(22, 35).save(tmp_path / "a.jpg", exif=exif)
    found = read_image(tmp_path / "a.jpg")
    assert found.size == ((35, 22) if orientation < 5 else (22, 35))
    expected = transformers.image_utils.load_image(str(tmp_path / "a.jpg"))
    assert np.array_equal(np.asarray(found), np.asarray(expected))
