"""Patches of images, and the models that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_values import randomize
from references.images import embedded, scores

import zoo
from zoo_components.norm import LayerNorm
from zoo_components.patches import NormedPatches, Patches, PreNormedPatches
from zoo_components.position import Learned

D_MODEL, N_HEADS, N_LAYERS = 8, 2, 2
VIT: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "builder": "encoder",
    "n_layers": N_LAYERS,
    "d_model": D_MODEL,
    "n_heads": N_HEADS,
    "d_ff": 12,
    "ffn": {"kind": "mlp", "activation": "gelu"},
    "embedding": {"kind": "patches", "image_size": 6, "patch_size": 2},
    "position": {"kind": "learned", "max_length": 10},
    "head": {"kind": "classifier", "n_classes": 5, "dense": "none"},
}


@pytest.mark.parametrize(
    ("class_token", "distillation_token", "n_registers"),
    [(True, False, 0), (False, False, 0), (True, True, 0), (True, False, 3), (False, False, 2)],
)
@pytest.mark.parametrize(
    ("image_size", "patch_size", "channels"), [(6, 2, 3), (6, 3, 1), (4, 4, 2), (3, 1, 3)]
)
def test_patches(
    image_size: int,
    patch_size: int,
    channels: int,
    class_token: bool,
    distillation_token: bool,
    n_registers: int,
) -> None:
    description = Patches(
        kind="patches",
        d_model=D_MODEL,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        class_token=class_token,
        distillation_token=distillation_token,
        n_registers=n_registers,
    )
    n_positions = (image_size // patch_size) ** 2 + class_token + distillation_token
    n_vectors = n_positions + n_registers
    assert (description.n_vectors, description.n_positions) == (n_vectors, n_positions)
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=n_positions).build()
    module = randomize(description.build(scheme).double(), 0.5)
    layout = {name: tensor.shape for name, tensor in description.layout().tensors()}
    w = dict(module.named_parameters())
    own = {name: tuple(t.shape) for name, t in w.items() if not name.startswith("positions.")}
    assert layout == own
    images = torch.randn(2, channels, image_size, image_size, dtype=torch.float64)
    images.requires_grad_()
    named = {f"embed.{name}": tensor for name, tensor in w.items()}
    expected = embedded(named, "embed", images, patch_size)
    found = module(images, torch.arange(n_vectors))
    assert found.shape == (2, n_vectors, D_MODEL)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(y.square().sum(), [images, *w.values()]) for y in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_patches_with_a_norm(bias: bool) -> None:
    description = NormedPatches(
        kind="normed_patches",
        d_model=D_MODEL,
        image_size=6,
        patch_size=2,
        n_registers=2,
        bias=bias,
        norm=LayerNorm(kind="layer_norm", width=D_MODEL),
    )
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=10).build()
    module = randomize(description.build(scheme).double(), 0.5)
    w = dict(module.named_parameters())
    own = {name: tuple(t.shape) for name, t in w.items() if not name.startswith("positions.")}
    assert {name: tensor.shape for name, tensor in description.layout().tensors()} == own
    assert ("patches.bias" in w) == bias
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    named = {f"embed.{name}": tensor for name, tensor in w.items()}
    found, expected = module(images, torch.arange(12)), embedded(named, "embed", images, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_patches_whose_norm_comes_before_positions() -> None:
    description = PreNormedPatches(
        kind="prenormed_patches",
        d_model=D_MODEL,
        image_size=6,
        patch_size=2,
        norm=LayerNorm(kind="layer_norm", width=D_MODEL, eps=0.1),
    )
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=10).build()
    module = randomize(description.build(scheme).double(), 0.5)
    w = dict(module.named_parameters())
    own = {name: tuple(t.shape) for name, t in w.items() if not name.startswith("positions.")}
    assert {name: tensor.shape for name, tensor in description.layout().tensors()} == own
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    patches = F.conv2d(images, w["patches.weight"], w["patches.bias"], stride=2)
    patches = patches.flatten(2).transpose(1, 2)
    normed = F.layer_norm(patches, [D_MODEL], w["patch_norm.weight"], w["patch_norm.bias"], eps=0.1)
    first = w["class_token"].expand(2, 1, D_MODEL)
    expected = torch.cat([first, normed], 1) + w["positions.weight"]
    found = module(images, torch.arange(10))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_vision_transformer() -> None:
    model = zoo.build(VIT, dtype=torch.float64)
    randomize(model.double(), 0.5)
    w = dict(model.named_parameters())
    images = torch.randn(3, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    expected = scores(w, images, 2, N_HEADS, N_LAYERS)
    found = model(images)
    assert found.shape == (3, 5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(
            (y * torch.linspace(0, 1, 5, dtype=y.dtype)).sum(), [images, *w.values()]
        )
        for y in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    _, maps = model(images, return_attention=True)
    assert [tuple(one.shape) for one in maps.encoder] == [(3, N_HEADS, 10, 10)] * N_LAYERS


def test_an_encoder_of_images_under_a_decoder_of_text() -> None:
    """A model that describes images: its decoder attends to the patches."""
    data = {**VIT, "builder": "encoder_decoder", "target_vocab": 11, "head": "linear"}
    data |= {"embedding": None, "position": None, "encoder": {}}
    data["encoder"] = {"embedding": VIT["embedding"], "position": VIT["position"]}
    data = {key: value for key, value in data.items() if value is not None}
    model = zoo.build(data).eval()
    images, target = torch.randn(2, 3, 6, 6), torch.randint(11, (2, 4))
    scores, maps = model(images, target, return_attention=True)
    assert scores.shape == (2, 4, 11)
    assert maps.cross[0].shape == (2, N_HEADS, 4, 10)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "one image": (
        torch.ones(3, 6, 6),
        ValueError,
        "not (3, 6, 6); a single image is `image[None]`",
    ),
    "no channels": (torch.ones(2, 6, 6), ValueError, "(batch, 3, 6, 6), not (2, 6, 6)"),
    "other channels": (torch.ones(2, 1, 6, 6), ValueError, "not (2, 1, 6, 6)"),
    "another size": (
        torch.ones(2, 3, 8, 8),
        ValueError,
        "not (2, 3, 8, 8); resize the images to 6 x 6",
    ),
    "channels last": (
        torch.ones(2, 6, 6, 3),
        ValueError,
        "channels come first: `images.movedim(-1, -3)`",
    ),
    "bytes": (torch.ones(2, 3, 6, 6).byte(), TypeError, "not torch.uint8: scale the pixels"),
    "ids": (torch.ones(2, 6).long(), TypeError, "floating-point numbers (batch, 3, 6, 6), not"),
    "one image, channels last": (
        torch.ones(6, 6, 3),
        ValueError,
        "channels come first: `images.movedim(-1, -3)`",
    ),
    "a list": (
        [[1, 2]],
        TypeError,
        "tensor of images, (batch, 3, 6, 6), not a list; `torch.stack`",
    ),
    "an array": (np.ones((2, 3, 6, 6)), TypeError, "(batch, 3, 6, 6), not a ndarray"),
    "float64": (
        torch.ones(2, 3, 6, 6).double(),
        TypeError,
        "images are torch.float64, and the model is torch.float32: `images.to(torch.float32)`",
    ),
    "half": (torch.ones(2, 3, 6, 6).half(), TypeError, "are torch.float16, and the model is torch"),
}


@pytest.mark.parametrize(("inputs", "kind", "message"), BAD.values(), ids=BAD)
def test_inputs_that_are_no_such_images(inputs: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        zoo.build(VIT)(inputs)


def test_autocast_takes_images_of_another_dtype() -> None:
    """All but float64, which it does not convert."""
    model, images = zoo.build(VIT).eval(), torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(images.bfloat16().float())
        torch.testing.assert_close(model(images.bfloat16()), wanted, rtol=0, atol=0)
        with pytest.raises(TypeError, match=r"these images are torch\.float64"):
            model(images.double())
        with pytest.raises(TypeError, match=r"the model is torch\.float64"):
            model.double()(images)


def test_no_images() -> None:
    """An empty batch has an empty output, as for ids."""
    assert zoo.build(VIT)(torch.ones(0, 3, 6, 6)).shape == (0, 5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("image_size = 6", "image_size = 1", "images of 1 pixels have no patch of 2"),
        ("max_length = 10", "max_length = 9", "becomes 10 vectors with positions, and there are 9"),
        (
            "channels = 3",
            "channels = 3\nclass_token = false\ndistillation_token = true",
            "a distillation token comes second, after a class token",
        ),
    ],
)
def test_contradictions(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    text = (
        'format = 1\nname = "m"\nbuilder = "encoder"\nn_layers = 1\nd_model = 8\nn_heads = 2\n'
        'd_ff = 8\nhead = "none"\n[embedding]\nkind = "patches"\nimage_size = 6\npatch_size = 2\n'
        'channels = 3\n[position]\nkind = "learned"\nmax_length = 10\n'
    )
    path.write_text(text)
    assert zoo.read_spec(path).n_parameters > 0
    path.write_text(text.replace(old, new))
    with pytest.raises(zoo.SpecError) as caught:
        zoo.read_spec(path)
    (problem,) = caught.value.problems
    assert message in problem.message
    lines = text.replace(old, new).splitlines()
    assert problem.place is not None
    assert lines[(problem.place.line or 0) - 1] == new.splitlines()[-1]
    assert len(problem.related) == 1  # the other key
