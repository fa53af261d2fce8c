"""A decoder whose text has images of any size in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from small_specs import TINY_IMAGE_TEXT, randomized
from torch.nn import functional as F

import zoo
from zoo.generation.decoding import Decoding
from zoo.generation.fixed_cache import FixedCache
from zoo.generation.media import Media
from zoo.inputs.in_texts import media_of_texts

IMAGE_ID, VOCAB = 9, 23
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "native",
    "builder": "native_image_text_decoder",
    "vocab": VOCAB,
    "image_id": IMAGE_ID,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 20,
    "projector": {"merge": 2},
    "decoder": {"d_model": 16, "position": {"kind": "rotary_multimodal", "sections": [1, 2, 1]}},
    "image": {
        "d_model": 8,
        "embedding": {"kind": "patch_vectors", "patch_size": 2, "frames": 3},
        "position": "rotary_axial",
    },
}
SIZES = [(8, 4), (4, 12), (8, 4)]
"""In pixels: images of 2 x 1, 1 x 3 and 2 x 1 states."""
N_STATES = [2, 3, 2]
IMAGES = [
    torch.randn(3, *size, generator=torch.Generator().manual_seed(number)).double()
    for number, size in enumerate(SIZES)
]
PROMPTS = [[1, *[IMAGE_ID] * 2, 3, *[IMAGE_ID] * 3, 4], [*[IMAGE_ID] * 2, 7, 2], [1, 2, 3]]
N_IMAGES = [2, 1, 0]


def changed(**tables: Any) -> dict[str, Any]:
    """The spec with other tables."""
    return {**copy.deepcopy(SPEC), **tables}


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(SPEC)


def of_rows(images: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The images of each prompt."""
    ends = [sum(N_IMAGES[: n + 1]) for n in range(len(N_IMAGES))]
    return [list(images[end - n : end]) for end, n in zip(ends, N_IMAGES, strict=True)]


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Heads (heads, length, width), each pair k and k + width / 2 turned by its angle, (length,
    width / 2), as complex numbers."""
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def attended(layer: Any, x: torch.Tensor, angles: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """The residual sum after the self-attention of a layer, by loops over queries: x (length,
    width)."""
    attn = layer.self_attn
    normed = attn.pre_norm(x)
    q, k, v = (
        getattr(attn, f"{name}_proj")(normed).unflatten(-1, (2, -1)).transpose(0, 1)
        for name in "qkv"
    )
    q, k = rotated(q, angles), rotated(k, angles)
    found = []
    for at in range(len(x)):
        seen = slice(at + 1) if causal else slice(None)
        scores = (k[:, seen] @ q[:, at, :, None])[..., 0] / k.shape[-1] ** 0.5
        found.append((scores.softmax(-1)[:, None] @ v[:, seen])[:, 0].flatten())
    return x + attn.o_proj(torch.stack(found))


def after(layer: Any, x: torch.Tensor, angles: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """The states after a layer."""
    x = attended(layer, x, angles, causal=causal)
    ffn = layer.ffn
    return x + ffn.down_proj(F.relu(ffn.up_proj(ffn.pre_norm(x))))


def run(stack: Any, x: torch.Tensor, angles: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """The states of all layers."""
    for layer in stack.layers:
        x = after(layer, x, angles, causal=causal)
    return stack.norm(x)


def states_of(model: Any, image: torch.Tensor) -> torch.Tensor:
    """What is read of an image, patch by patch and square by square."""
    rows, columns = image.shape[1] // 2, image.shape[2] // 2
    places = [(row, column) for row in range(rows) for column in range(columns)]
    patches = []
    for row, column in places:
        patch = image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        patches.append(torch.stack([patch] * 3, 1).flatten())
    x = model.image.embed.patches(torch.stack(patches))
    # Heads of 4 elements, whose first pair is turned by the row and whose second by the column.
    angles = torch.tensor(places, dtype=torch.float64)
    x = run(model.image, x, angles, causal=False).unflatten(0, (rows, columns))
    projector = model.projector
    return projector.down_proj(F.gelu(projector.up_proj(squares(x))))


def squares(x: torch.Tensor) -> torch.Tensor:
    """The states of 2 x 2 patches one after the other, of x (rows, columns, width)."""
    found = []
    for row in range(0, x.shape[0], 2):
        for column in range(0, x.shape[1], 2):
            square = [x[row + i, column + j] for i in range(2) for j in range(2)]
            found.append(torch.cat(square))
    return torch.stack(found)


def test_a_call_by_loops(model: Any) -> None:
    """Of one text with two images: patches, rows and columns, merged states, and the time, the row
    and the column of each token."""
    one, other = states_of(model, IMAGES[0]), states_of(model, IMAGES[1])
    for found, expected in zip(model.read_images(IMAGES[:2]), (one, other), strict=True):
        torch.testing.assert_close(found, expected)
    table = model.decoder.embed.tokens.weight
    x = torch.cat([table[[1]], one, table[[3]], other, table[[4]]])
    # 2 x 1 states, after which text goes on at 1 + 2, and 1 x 3, after which at 4 + 3.
    coordinates = torch.tensor(
        [(0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 3, 3), (4, 4, 4), (4, 4, 5), (4, 4, 6), (7, 7, 7)]
    ).double()
    frequencies = 10000.0 ** -(torch.arange(4) / 4).double()
    angles = coordinates[:, [0, 1, 1, 2]] * frequencies
    expected = model.head(run(model.decoder, x, angles, causal=True))
    found = model(torch.tensor(PROMPTS[:1]), IMAGES[:2])
    torch.testing.assert_close(found[0], expected)


def test_other_positions_count_each_state() -> None:
    """A position scheme of one coordinate has the next position for each state, and one in the
    encoder of images counts patches row by row."""
    spec = changed(
        decoder={"d_model": 16, "position": "rotary"},
        image={**SPEC["image"], "position": "rotary"},
    )
    model = randomized(spec)
    _, inserted = model.insert_images(torch.tensor(PROMPTS[:1]), IMAGES[:2])
    assert inserted.steps is None
    states = model.read_images(IMAGES[:2])
    table = model.decoder.embed.tokens.weight
    x = torch.cat([table[[1]], states[0], table[[3]], states[1], table[[4]]])
    angles = torch.arange(8).double()[:, None] * 10000.0 ** -(torch.arange(4) / 4).double()
    expected = model.head(run(model.decoder, x, angles, causal=True))
    torch.testing.assert_close(model(torch.tensor(PROMPTS[:1]), IMAGES[:2])[0], expected)
    plain = model.image(torch.zeros(1, 8, 36, dtype=torch.float64))[0]
    assert plain.shape == (1, 8, 8)


MERGED: dict[str, Any] = changed(
    projector={"merge": 2, "merge_by": "linear"},
    image={
        "d_model": 16,
        "embedding": {"kind": "normed_patch_vectors", "patch_size": 2},
        "position": {"kind": "rotary_axial_alternating", "base": 5.0},
    },
)
"""An encoder of images as that of Pixtral, and squares of patches that a linear map merges."""


@pytest.mark.parametrize("image", IMAGES[:2], ids=["8x4", "4x12"])
def test_normed_patches_alternating_frequencies_and_a_map_that_merges(image: torch.Tensor) -> None:
    model = randomized(MERGED)
    encoder, projector = model.image, model.projector
    rows, columns = image.shape[1] // 2, image.shape[2] // 2
    places = [(row, column) for row in range(rows) for column in range(columns)]
    weight, norm = encoder.embed.patches.weight.view(16, 3, 2, 2), encoder.embed.norm
    vectors = F.conv2d(image[None], weight, stride=2)[0].flatten(1).T
    vectors = F.layer_norm(vectors, (16,), norm.weight, norm.bias)
    # Heads of 8 elements: pairs 0 and 1 are turned by the row, with frequencies 0 and 2 of 4, pairs
    # 2 and 3 by the column, with frequencies 1 and 3.
    angles = torch.tensor(
        [
            [row, row * 5.0 ** -(2 / 4), column * 5.0 ** -(1 / 4), column * 5.0 ** -(3 / 4)]
            for row, column in places
        ],
        dtype=torch.float64,
    )
    states = run(encoder, vectors, angles, causal=False).unflatten(0, (rows, columns))
    merge = projector.merge_proj.weight.view(16, 2, 2, 16)
    merged = F.conv2d(states.permute(2, 0, 1)[None], merge.permute(0, 3, 1, 2), stride=2)
    merged = merged[0].flatten(1).T
    expected = projector.down_proj(F.gelu(projector.up_proj(merged)))
    (found,) = model.read_images([image])
    torch.testing.assert_close(found, expected)
    assert projector.merge_proj.bias is None


def test_parameters_of_normed_patches_and_of_a_map_that_merges() -> None:
    width, d_text = 16, 16
    of_projector = 4 * width * width + (width * d_text + d_text) + (d_text * d_text + d_text)
    of_embedding = 3 * 2 * 2 * width + 2 * width
    of_layers = 2 * (4 * (width * width + width) + 2 * width * 20 + 20 + width + 4 * width)
    of_decoder = 2 * (4 * (16 * 16 + 16) + 2 * 16 * 20 + 20 + 16 + 4 * 16) + 2 * 16
    of_tokens = 2 * VOCAB * 16
    of_image = of_embedding + of_layers + 2 * width
    wanted = of_image + of_projector + of_decoder + of_tokens
    assert zoo.read_spec(MERGED).n_parameters == wanted
    assert sum(one.numel() for one in zoo.build(MERGED).parameters()) == wanted


def test_texts_alone_have_plain_rotary_positions(model: Any) -> None:
    spec = changed(decoder={"d_model": 16, "position": "rotary"})
    plain = zoo.build(spec, dtype=torch.float64).eval()
    plain.load_state_dict(model.state_dict())
    text = torch.tensor([[1, 5, 3, 22], [4, IMAGE_ID, 7, 2]])
    torch.testing.assert_close(model(text), plain(text))


def check_padding(model: Any, side: str) -> None:
    """Texts of other lengths, in whose padding the token of images stands."""
    longest = max(map(len, PROMPTS))
    rows = torch.full((len(PROMPTS), longest), IMAGE_ID)
    mask = torch.zeros_like(rows, dtype=torch.bool)
    for number, row in enumerate(PROMPTS):
        at = slice(longest - len(row), None) if side == "left" else slice(len(row))
        rows[number, at], mask[number, at] = torch.tensor(row), True
    found = model(rows, IMAGES, target_mask=mask)
    for row, seen, one, real in zip(PROMPTS, of_rows(IMAGES), found, mask, strict=True):
        alone = model(torch.tensor([row]), seen or None)[0]
        torch.testing.assert_close(one[real], alone)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model: Any, side: str) -> None:
    check_padding(model, side)


def test_images_of_one_size_are_read_together(model: Any) -> None:
    calls: list[tuple[int, ...]] = []
    hook = model.image.register_forward_pre_hook(lambda _, given: calls.append(given[0].shape))
    try:
        model.read_images(IMAGES)
    finally:
        hook.remove()
    assert calls == [(2, 8, 36), (1, 12, 36)]
    together = torch.stack([IMAGES[0], IMAGES[2]])
    for found, image in zip(model.read_images(together), together, strict=True):
        torch.testing.assert_close(found, states_of(model, image))


def test_attention_maps(model: Any) -> None:
    output, maps = model(torch.tensor(PROMPTS[:1]), IMAGES[:2], return_attention=True)
    torch.testing.assert_close(output, model(torch.tensor(PROMPTS[:1]), IMAGES[:2]))
    sizes = [tuple(map_.shape) for map_ in maps.encoder]
    assert sizes == [(1, 2, 8, 8), (1, 2, 8, 8), (1, 2, 12, 12), (1, 2, 12, 12)]
    assert [tuple(map_.shape) for map_ in maps.decoder] == [(1, 2, 8, 8)] * 2


METHODS = [zoo.Greedy(), zoo.Beam(size=3, n_answers=2), zoo.Sampling(seed=3, n_answers=2)]


def check_generation(model: Any, method: Any) -> None:
    """Prompts with two images, with one and with none, together and each alone, with a cache and
    without."""
    asked = {"max_new_tokens": 6, "method": method}
    found = zoo.generate(model, PROMPTS, images=IMAGES, **asked)
    again = zoo.generate(model, PROMPTS, images=IMAGES, cache=False, **asked)
    for one, other in zip(found, again, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-10)
    if isinstance(method, zoo.Sampling):
        return  # the numbers that it draws are those of a batch
    for prompt, seen, one in zip(PROMPTS, of_rows(IMAGES), found, strict=True):
        (alone,) = zoo.generate(model, prompt, images=seen or None, **asked)
        assert alone.ids == one.ids
        assert alone.score == pytest.approx(one.score, abs=1e-10)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_generation(model: Any, method: Any) -> None:
    check_generation(model, method)


@pytest.mark.parametrize("draft", [None, zoo.Lookup()])
def test_greedy_tokens_are_those_of_calls_with_all(model: Any, draft: Any) -> None:
    for ids, seen in zip(PROMPTS, of_rows(IMAGES), strict=True):
        (found,) = zoo.generate(model, ids, images=seen or None, max_new_tokens=8, draft=draft)
        target = torch.tensor([[*ids, *found.ids]])
        expected, inserted = target, None
        if seen:  # a generated `image_id` is a token, and no place of an image
            read, inserted = model.insert_images(target[:, : len(ids)], seen)
            expected = torch.cat([read, target[:, len(ids) :]], 1)
        scores = model.head(model.decode(expected, inserted=inserted))[0, len(ids) - 1 : -1]
        assert scores.argmax(-1).tolist() == list(found.ids)


def test_it_is_saved_and_loaded(model: Any, tmp_path: Path) -> None:
    zoo.save(model, tmp_path / "model.safetensors")
    loaded = zoo.load(tmp_path / "model.safetensors").eval()
    text = torch.tensor(PROMPTS[:1])
    torch.testing.assert_close(loaded(text, IMAGES[:2]), model(text, IMAGES[:2]))
    assert loaded.spec.model.task == "generate"
    of_image = 36 * 8 + 2 * (4 * (8 * 8 + 8) + 2 * 8 * 20 + 20 + 8 + 4 * 8) + 2 * 8
    of_text = VOCAB * 16 + 2 * (4 * (16 * 16 + 16) + 2 * 16 * 20 + 20 + 16 + 4 * 16) + 2 * 16
    of_maps = 32 * 16 + 16 + 16 * 16 + 16 + 16 * VOCAB
    assert loaded.spec.n_parameters == of_image + of_text + of_maps
    how = loaded.spec.model.generation.inserted_images
    assert [how.states_of(*size) for size in SIZES] == N_STATES


@pytest.mark.parametrize(
    ("text", "n_images", "message"),
    [
        ([[1, 9, 9]], 2, "2 places of the token 9, which are for 1 image, and 2 images given"),
        ([[1, 9, 9, 9]], 2, "there are 3 places of the token 9, and each image takes one for each"),
        ([[9, 9], [9, 9, 9, 2]], 1, "sequence 1 has 3 places .* the next images have none"),
        ([[9, 1], [9, 9]], 1, "sequence 0 has 1 place .* the next images have 2"),
    ],
)
def test_places_and_images_must_agree(
    model: Any, text: list[list[int]], n_images: int, message: str
) -> None:
    longest = max(map(len, text))
    rows = [row + [0] * (longest - len(row)) for row in text]
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(rows), IMAGES[:n_images])
    with pytest.raises(zoo.InputError, match=message):
        zoo.generate(model, text, images=IMAGES[:n_images], max_new_tokens=2)


def test_which_images_stand_in_which_text() -> None:
    assert media_of_texts([5, 0, 3], [2, 3, 1, 2], 9, "image") == (2, 0, 2)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([], ValueError, "there are no images: leave them out"),
        ("photo.jpg", TypeError, "takes a list of images, tensors .* not a str"),
        ([[[1.0]]], TypeError, "image 0 is a tensor .*, not a list"),
        ([torch.zeros(3, 4, 4).int()], TypeError, "not torch.int32: scale the pixels"),
        ([torch.zeros(3, 4, 4)], TypeError, "these images are torch.float32, and the model is"),
        ([torch.zeros(4, 4, 3)], ValueError, "the channels come first"),
        (torch.zeros(3, 4, 4), ValueError, "a single image is `.image.`"),
        ([torch.zeros(3, 4, 6)], ValueError, "multiples of 4 pixels, and image 0 has 4 x 6"),
        ([torch.zeros(3, 0, 4)], ValueError, "multiples of 4 pixels, and image 0 has 0 x 4"),
    ],
)
def test_images_that_do_not_fit(
    model: Any, images: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model(torch.tensor([[1, 9]]), images)


def test_prompts_with_images_that_do_not_fit(model: Any) -> None:
    for images, message in (
        ([torch.zeros(3, 4, 6)], "images: the height and the width of an image are multiples of 4"),
        ([torch.full((3, 4, 4), torch.nan)], "image 0 holds numbers that are not finite"),
        ([torch.zeros(3, 4, 4, device="meta")], "on the device `meta` has no values"),
    ):
        with pytest.raises(zoo.InputError, match=message):
            zoo.generate(model, [1, 9], images=images, max_new_tokens=2)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"image": {**SPEC["image"], "embedding": {"kind": "vectors"}}},
            "the embedding `vectors` takes no patches of images of any size",
        ),
        ({"image_id": 23}, "image_id = 23 is beyond the vocabulary of 23 tokens"),
        (
            {"decoder": {"d_model": 16, "position": "rotary_axial"}},
            "tokens have a time, a row and a column here, and a position scheme, an attention or "
            "an embedding tells apart 2 coordinates",
        ),
        (
            {
                "image": {
                    **SPEC["image"],
                    "position": {"kind": "rotary_multimodal", "sections": [1, 1, 1]},
                    "d_model": 12,
                }
            },
            "patches have rows and columns here, and .* tells apart 3 coordinates",
        ),
        (
            {
                "decoder": {
                    "d_model": 16,
                    "position": {"kind": "rotary_multimodal", "sections": [1, 2, 2]},
                }
            },
            "`sections` has 5 pairs for 4 rotated ones",
        ),
        (
            {"image": {**SPEC["image"], "d_model": 12}},
            "rows and columns turn equally many pairs: head_dim . fraction = 6",
        ),
    ],
)
def test_a_wrong_spec_is_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(changed(**tables))


QWEN: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "min_pixels": 64,
    "max_pixels": 400,
    "patch_size": 2,
    "merge_size": 2,
    "temporal_patch_size": 3,
}


def read(model: Any, folder: Path, settings: dict[str, Any]) -> list[torch.Tensor]:
    """The pixels of an image of 37 x 53 pixels in a text, by these settings."""
    zoo.save(model, folder / "m")
    (folder / "m" / "preprocessor_config.json").write_text(json.dumps(settings))
    text_model = zoo.TextModel.load(folder / "m")
    assert text_model.images is not None
    row = text_model.images.row("1 9 3", [Image.new("RGB", (53, 37))])
    assert row.ids == [1, *[IMAGE_ID] * 20, 3]
    return list(row.images)


def test_images_are_read_from_files(model: Any, tmp_path: Path) -> None:
    (pixels,) = read(model, tmp_path, QWEN)
    assert pixels.shape == (3, 16, 20)  # at most 400 pixels, in squares of 4 x 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 4}, "by these settings `patch_size` is 4, and that of native is 2"),
        ({"merge_size": 1}, "by these settings `merge_size` is 1, and that of native is 2"),
        ({"temporal_patch_size": 2}, "`temporal_patch_size` is 2, and that of native is 3"),
        ({"do_resize": False}, "the image has 37 x 53 pixels, and the sides of those that the"),
    ],
)
def test_settings_of_another_model(
    model: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(zoo.ZooError, match=message):
        read(model, tmp_path, QWEN | settings)


def test_settings_of_images_of_one_size(model: Any, tmp_path: Path) -> None:
    settings = {"image_processor_type": "ViTImageProcessor", "size": 4}
    with pytest.raises(zoo.WeightsError, match="images become of one size, and native takes those"):
        read(model, tmp_path, settings)
    other = zoo.build(TINY_IMAGE_TEXT)
    with pytest.raises(zoo.WeightsError, match="images become of any size, and image-text takes"):
        read(other, tmp_path / "other", QWEN)


def test_steps_that_are_recorded(model: Any) -> None:
    """A cache of fixed shapes goes on from the positions after images."""
    ids, following = torch.tensor(PROMPTS[:1]), torch.tensor([[5, 7, 11]])
    read, inserted = model.insert_images(ids, IMAGES[:2])
    states = model.decode(torch.cat([read, following], 1), inserted=inserted)
    decoding = Decoding(
        model, capacity=11, memory=None, keep=True, media=Media("images", IMAGES[:2], (2,))
    )
    decoding.scores(ids)
    decoding.cache = FixedCache(decoding.cache, ids.device)
    for at, token in enumerate(following[0]):
        found = decoding.scores(token.view(1, 1))
        torch.testing.assert_close(found, model.head(states[:, ids.shape[1] + at]))
    with pytest.raises(ValueError, match="a cache of fixed shapes takes no tokens of images"):
        decoding.cache.past.append(
            1, seen=None, counted=None, device=ids.device, steps=torch.ones(1, 1).long()
        )
