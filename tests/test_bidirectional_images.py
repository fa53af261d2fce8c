"""Images of any size in texts, each of which sees all of itself in layers with a window; and what
their encoder is made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_specs import randomized

import zoo

IMAGE_ID, VOCAB = 9, 23
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "seeing",
    "builder": "bidirectional_image_text_decoder",
    "vocab": VOCAB,
    "image_id": IMAGE_ID,
    "n_layers": 2,
    "n_heads": 2,
    "d_ff": 20,
    "projector": {
        "merge": 2,
        "merge_by": "mean",
        "norm": {"kind": "standardized_rms_norm", "eps": 0.3},
        "activation": "none",
    },
    "decoder": {
        "d_model": 16,
        "position": "rotary",
        "layers": [{"at": [0], "self_attn": {"kind": "multi_head", "window": 3}}],
    },
    "image": {
        "d_model": 16,
        "embedding": {
            "kind": "factorized_patch_vectors",
            "patch_size": 2,
            "max_patches": 6,
            "pixels": "centered",
        },
        "position": "rotary_axial_halves",
        "self_attn": "clipped_multi_head",
        "ffn": "clipped_glu",
    },
}
SIZES = [(8, 4), (4, 12)]
"""In pixels: images of 2 x 1 and 1 x 3 states."""
IMAGES = [
    torch.randn(3, *size, generator=torch.Generator().manual_seed(number)).double()
    for number, size in enumerate(SIZES)
]
TEXT = torch.tensor([[1, IMAGE_ID, IMAGE_ID, 3, IMAGE_ID, IMAGE_ID, IMAGE_ID, 4, 5]])


@pytest.fixture(scope="module")
def model() -> Any:
    return randomized(SPEC)


def test_who_sees_whom(model: Any) -> None:
    """In the layer with a window, states of one image see each other, as far as the window lets
    them back; in the other one, as all tokens, what is before them."""
    _, maps = model(TEXT, IMAGES, return_attention=True)
    blocks = [-1, 0, 0, -1, 1, 1, 1, -1, -1]
    places = range(len(blocks))
    windowed = [
        [i - j < 3 and (j <= i or blocks[i] == blocks[j] >= 0) for j in places] for i in places
    ]
    causal = [[j <= i for j in places] for i in places]
    for found, expected in zip(maps.decoder, (windowed, causal), strict=True):
        assert ((found[0] > 0) == torch.tensor(expected)).all()


@pytest.mark.parametrize("return_attention", [False, True])
def test_padding_beside_images_changes_nothing(model: Any, return_attention: bool) -> None:
    padded = torch.cat([TEXT, torch.zeros(1, 3, dtype=torch.long)], 1)
    both = torch.cat([padded, padded.flip(1)])
    mask = torch.ones_like(both, dtype=torch.bool)
    mask[0, -3:] = False
    with torch.no_grad():
        found = model(
            both, IMAGES + IMAGES[::-1], target_mask=mask, return_attention=return_attention
        )
        output = found[0] if return_attention else found
        torch.testing.assert_close(output[:1, : TEXT.shape[1]], model(TEXT, IMAGES))


def test_generation_with_a_cache_is_that_without(model: Any) -> None:
    prompts = [TEXT[0].tolist(), [*TEXT[0, :4].tolist(), 7]]
    images = [*IMAGES, IMAGES[0]]
    found = [
        zoo.generate(model, prompts, images=images, max_new_tokens=6, cache=cache)
        for cache in (True, False)
    ]
    assert [one.ids for one in found[0]] == [one.ids for one in found[1]]


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Elements k and k + n of x (..., 2 n) turned by the k-th of n angles, as complex numbers."""
    first, second = x.chunk(2, -1)
    found = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([found.real, found.imag], -1)


def within(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, low), high)


def clipped(map_: Any, x: torch.Tensor) -> torch.Tensor:
    """What a map makes of x, from its tensors."""
    y = within(x, map_.input_min, map_.input_max) @ map_.weight.T
    y = y if map_.bias is None else y + map_.bias
    return within(y, map_.output_min, map_.output_max)


def test_what_is_read_of_an_image(model: Any) -> None:
    """Patch by patch: rows and columns with vectors of their own, heads whose first half is turned
    by the column and whose second by the row, maps with bounds, means of squares, and these
    standardized."""
    model = copy.deepcopy(model)
    for name, buffer in model.image.named_buffers():
        if name.endswith(("_min", "_max")):
            buffer.copy_(torch.tensor(-0.4 if name.endswith("_min") else 0.5))
    image = IMAGES[1]
    rows, columns = 2, 6
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    x = []
    embed = model.image.embed
    for row, column in cells:
        patch = image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten()
        vector = embed.patches.weight @ (2 * patch - 1)
        x.append(vector + embed.rows.weight[row] + embed.columns.weight[column])
    x = torch.stack(x)
    frequencies = 100.0 ** -(torch.arange(2) / 2).double()
    for layer in model.image.layers:
        attn, ffn = layer.self_attn, layer.ffn
        normed = attn.pre_norm(x)
        q, k, v = (clipped(getattr(attn, f"{p}_proj"), normed).unflatten(-1, (2, 8)) for p in "qkv")
        by_column, by_row = (
            torch.tensor([[cell[axis]] for cell in cells]).double()[:, None] * frequencies
            for axis in (1, 0)
        )
        q, k = (
            torch.cat([turned(one[..., :4], by_column), turned(one[..., 4:], by_row)], -1)
            for one in (q, k)
        )
        weights = (torch.einsum("qhd,khd->hqk", q, k) / 8**0.5).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        x = x + clipped(attn.o_proj, mixed)
        normed = ffn.pre_norm(x)
        gate = torch.nn.functional.silu(clipped(ffn.gate_proj, normed))
        x = x + clipped(ffn.down_proj, gate * clipped(ffn.up_proj, normed))
    x = model.image.norm(x).unflatten(0, (rows, columns))
    means = torch.stack([x[:, c : c + 2].flatten(0, 1).mean(0) for c in range(0, columns, 2)])
    norm = model.projector.norm
    y = norm.scale * (16**0.5 * means - norm.mean)
    y = y / (y.pow(2).mean(-1, keepdim=True) + 0.3).sqrt()
    expected = model.projector.proj(y)
    (found,) = model.read_images([image])
    torch.testing.assert_close(found, expected)


def test_new_bounds_bound_nothing() -> None:
    """So the model computes what it does without them."""
    spec = copy.deepcopy(SPEC)
    spec["image"] |= {"self_attn": "multi_head", "ffn": "glu"}
    bounded, plain = (zoo.build(one, seed=1, dtype=torch.float64) for one in (SPEC, spec))
    for found, expected in zip(bounded.read_images(IMAGES), plain.read_images(IMAGES), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_image_with_more_rows_than_there_are_vectors(model: Any) -> None:
    image = torch.zeros(3, 4, 16, dtype=torch.float64)
    message = "an image are 12 pixels at most, and image 1 has 4 x 16"
    with pytest.raises(ValueError, match=message):
        model.read_images([IMAGES[0], image])
    with pytest.raises(zoo.InputError, match=message):
        zoo.generate(model, [[1, *[IMAGE_ID] * 6]], images=[IMAGES[0], image], max_new_tokens=1)


def test_without_a_window_nothing_would_see_ahead() -> None:
    spec = copy.deepcopy(SPEC)
    del spec["decoder"]["layers"]
    with pytest.raises(zoo.SpecError, match="no layer has one: state a `window`"):
        zoo.read_spec(spec)
