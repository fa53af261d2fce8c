"""Two encoders whose vectors are compared."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY_DUAL
from torch.nn import functional as F

import zoo
from zoo.purpose import Comparison
from zoo.running.settings import Settings
from zoo.running.text import Numbers

SPEC = TINY_DUAL
TEXT = torch.tensor([[3, 5, 7, 2], [1, 2, 3, 7], [7, 1, 7, 1]])
IMAGE = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The spec with another value."""
    spec = copy.deepcopy(SPEC)
    table, *keys = path.split(".")
    if keys:
        spec[table][keys[0]] = value
    else:
        spec[table] = value
    return spec


@pytest.mark.parametrize("bias", [None, -10.0])
def test_logits_are_scaled_cosines(bias: float | None) -> None:
    spec = SPEC if bias is None else changed("logit_bias", bias)
    model = zoo.build(spec, dtype=torch.float64).eval()
    start = zoo.read_spec(spec).tensors["logit_scale"].value
    assert model.logit_scale.item() == pytest.approx(start)
    assert math.exp(start) == pytest.approx(1 / 0.07, rel=1e-4)  # Radford et al., section 2.5
    with torch.no_grad():
        model.logit_scale.fill_(0.5)
    images, texts = model.encode_image(IMAGE), model.encode_text(TEXT)
    assert images.shape == (2, 6)
    assert texts.shape == (3, 6)
    cosines = F.cosine_similarity(images[:, None], texts[None], dim=-1)
    expected = math.exp(0.5) * cosines + (bias or 0.0)
    torch.testing.assert_close(model(IMAGE, TEXT), expected)
    model.logit_scale.requires_grad_()
    model(IMAGE, TEXT).sum().backward()
    slope = (math.exp(0.5) * cosines).sum().detach()
    torch.testing.assert_close(model.logit_scale.grad, slope[None])


def test_each_side_is_the_encoder_alone() -> None:
    """With the same weights, the encoders of the two sides make the same vectors."""
    model = zoo.build(SPEC, dtype=torch.float64).eval()
    common = {key: SPEC[key] for key in ("format", "n_layers", "n_heads", "d_ff")}
    for side, given in (("image", IMAGE), ("text", TEXT)):
        head = {"kind": "joint_embedding", **SPEC[f"{side}_head"]}
        alone = common | {"name": side, "builder": "encoder", "encoder": SPEC[side], "head": head}
        if side == "text":
            alone["vocab"] = 11
        encoder = zoo.build(alone, dtype=torch.float64).eval()
        weights = {
            name.replace(f"{side}_head.", "head.").replace(f"{side}.", "encoder."): tensor
            for name, tensor in model.state_dict().items()
            if name.startswith((f"{side}.", f"{side}_head."))
        }
        encoder.load_state_dict(weights)
        found = model.encode_image(given) if side == "image" else model.encode_text(given)
        torch.testing.assert_close(found, encoder(given), rtol=0, atol=0)


def test_a_mask_hides_padding_of_texts() -> None:
    model = zoo.build(changed("text.causal", False), dtype=torch.float64).eval()
    mask = torch.tensor([[True, True, True, False], [True] * 4, [True] * 4])
    other = TEXT.clone()
    other[0, 3] = 9
    found, hidden = (model(IMAGE, text, text_mask=mask) for text in (TEXT, other))
    torch.testing.assert_close(found, hidden)
    assert not torch.allclose(model(IMAGE, TEXT), model(IMAGE, other))


def test_attention_maps_of_both() -> None:
    model = zoo.build(SPEC, dtype=torch.float64).eval()
    logits, maps = model(IMAGE, TEXT, return_attention=True)
    torch.testing.assert_close(logits, model(IMAGE, TEXT))
    assert [tuple(one.shape) for one in maps.encoder] == [(2, 2, 10, 10)] * 2 + [(3, 2, 4, 4)] * 2
    assert maps.decoder == maps.cross == ()


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    model = zoo.build(SPEC | {"logit_bias": -10.0}).eval()
    zoo.save(model, tmp_path / "dual.safetensors")
    loaded = zoo.load(tmp_path / "dual.safetensors").eval()
    image = IMAGE.float()
    assert torch.equal(loaded(image, TEXT), model(image, TEXT))
    assert loaded.logit_bias.item() == -10.0


def test_what_it_is_for() -> None:
    """It embeds images and texts, and compares them; it generates nothing, and keeps no cache."""
    spec = zoo.read_spec(SPEC)
    assert spec.layout.cache_per_token == 0
    assert spec.model.generation is spec.model.reading is None
    assert spec.model.task == "embed"
    assert spec.model.comparison == Comparison("softmax", pads=False)
    siglip = SPEC | {"logit_bias": -10.0, "text_head": {"pooling": "last_position", "d_out": 6}}
    assert zoo.read_spec(siglip).model.comparison == Comparison("sigmoid", pads=True)
    assert spec.model.images == {"image": (3, 6, 6)}
    model = zoo.build(spec)
    (found,) = zoo.TextModel(model, Numbers(), Settings()).run(["3 4"])
    expected = model.eval().encode_text(torch.tensor([[3, 4]]))[0].tolist()
    assert found == {"task": "embed", "embedding": expected}


def test_the_operations_of_an_image_and_a_text() -> None:
    """Two for each product: of the projections, the scores and what they weigh, and the network."""

    def layers(tokens: int, d_model: int) -> int:
        attention = 4 * tokens * d_model**2 + 2 * tokens**2 * d_model
        return 2 * 2 * (attention + 2 * tokens * d_model * 12)

    patches = 2 * 9 * 12 * (3 * 2 * 2)
    image = patches + layers(10, 12) + 2 * 12 * 6
    text = layers(4, 8) + 2 * 8 * 6
    found = zoo.flops(SPEC, 4)
    assert found["forward"] == image + text + 2 * 6
    assert (found["images"], found["length"]) == (1, 4)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "image_head.d_out",
            5,
            "vectors of images are 5 wide and those of texts 6, so that they cannot be compared",
        ),
        ("image_head.d_out", "none", "vectors of images are 12 wide and those of texts 6"),
        (
            "text_head",
            {"kind": "linear"},
            "the head `linear` makes no vectors that could be compared",
        ),
        (
            "image.embedding",
            "vectors",
            "the embedding `vectors` takes no images: state one that does under `image`",
        ),
        (
            "text.embedding",
            {"kind": "patches", "image_size": 6, "patch_size": 2},
            "the embedding `patches` reads no texts: state one that does under `text`",
        ),
    ],
)
def test_contradictions(path: str, value: Any, message: str) -> None:
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(changed(path, value))
    assert message in str(caught.value)
