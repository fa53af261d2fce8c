"""Convolutions over a signal, against sums over frames."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo_components.frontend import ConvFrontend
from zoo_components.position import Learned

VOCAB, D_MODEL = 13, 6


def convolved(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """(frames, channels): each output is a sum over the frames around, zeros outside."""
    kernel = weight.shape[2]
    pad = kernel // 2
    outputs = []
    for start in range(-pad, len(x) + pad - kernel + 1, stride):
        y = bias
        for k in range(kernel):
            if 0 <= start + k < len(x):
                y = y + weight[:, :, k] @ x[start + k]
        outputs.append(y)
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kernel_sizes": (5, 3, 2), "strides": (2, 1, 3), "d_conv": 7},
        {"activation": "glu", "scale": "sqrt_d_model", "strides": (2, 2)},
        {"kernel_sizes": (4,), "strides": (2,), "scale": 0.5},
    ],
)
@pytest.mark.parametrize("frames", [9, 10])
def test_convolutions(fields: dict[str, Any], frames: int) -> None:
    description = ConvFrontend(kind="conv_frontend", d_model=D_MODEL, n_features=3, **fields)
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=20).build().double()
    nn.init.normal_(scheme.weight)
    module = description.build(scheme).double()
    layout = {name: tensor.shape for name, tensor in description.layout().tensors()}
    w = {n: t for n, t in module.named_parameters() if not n.startswith("positions.")}
    assert layout == {name: tuple(tensor.shape) for name, tensor in w.items()}
    features = torch.randn(2, frames, 3, dtype=torch.float64)
    expected = []
    for x in features:
        for number, stride in enumerate(description.strides):
            x = convolved(x, w[f"{number}.weight"], w[f"{number}.bias"], stride)
            if description.activation == "glu":
                half = x.shape[1] // 2
                x = x[:, :half] * torch.sigmoid(x[:, half:])
            else:
                x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        scale = math.sqrt(D_MODEL) if description.scale == "sqrt_d_model" else description.scale
        expected.append(x * scale + scheme.weight[: len(x)])
    length = module.embedded_length(frames)
    found = module(features, torch.arange(length))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(y.square().sum(), list(w.values()))
        for y in (found, torch.stack(expected))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel_sizes", [(3, 3), (5, 4), (2, 1)])
@pytest.mark.parametrize("strides", [(1, 2), (3, 2), (1, 1)])
def test_the_most_frames_of_so_many_vectors(
    kernel_sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    fields = {"d_model": 4, "n_features": 3, "kernel_sizes": kernel_sizes, "strides": strides}
    description = ConvFrontend(kind="conv_frontend", **fields)
    module = description.build()
    for n_vectors in (5, 6):
        most = description.most_inputs(n_vectors)
        n_made = [module(torch.zeros(1, n, 3), torch.arange(99)).shape[1] for n in (most, most + 1)]
        assert n_made == [n_vectors, n_vectors + 1]


def test_a_model_of_a_signal() -> None:
    """As in Whisper: the encoder gets features, twice as long as the sequence it attends to."""
    data = {
        "format": 1,
        "name": "m",
        "builder": "encoder_decoder",
        "target_vocab": VOCAB,
        "n_layers": 1,
        "d_model": 8,
        "n_heads": 2,
        "d_ff": 4,
        "encoder": {
            "embedding": {"kind": "conv_frontend", "n_features": 3},
            "position": {"kind": "learned", "max_length": 4},
        },
    }
    model = zoo.build(data).eval()
    assert "encoder.frontend.0.weight" in model.spec.tensors
    assert "encoder.frontend.positions.weight" in model.spec.tensors
    features, target = torch.randn(2, 8, 3), torch.randint(VOCAB, (2, 5))
    logits, maps = model(features, target, return_attention=True)
    assert logits.shape == (2, 5, VOCAB)
    assert maps.encoder[0].shape == (2, 2, 4, 4)
    assert maps.cross[0].shape == (2, 2, 5, 4)
    mask = torch.tensor([[True, True, True, False]]).expand(2, -1)
    changed = features.clone()
    changed[:, 7] += 1
    hidden = [model(f, target, source_mask=mask) for f in (features, changed)]
    torch.testing.assert_close(*hidden)
    assert not torch.allclose(model(changed, target), logits)
    with pytest.raises(ValueError, match="5 tokens is longer than the model's 4 positions"):
        model.encode(torch.randn(2, 9, 3))


def test_contradiction() -> None:
    data = {"format": 1, "name": "m", "builder": "encoder", "n_layers": 1, "d_model": 8}
    data |= {"n_heads": 2, "d_ff": 4, "head": "none"}
    data["embedding"] = {"kind": "conv_frontend", "n_features": 3, "strides": [1]}
    with pytest.raises(zoo.SpecError, match="2 kernel sizes and 1 strides"):
        zoo.read_spec(data)
