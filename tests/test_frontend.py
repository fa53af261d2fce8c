"""Convolutions over a signal, against sums over frames."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo_components.frontend import Conv2dFrontend, ConvFrontend
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


def convolved_2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int, pad: int) -> Tensor:
    """(frames, features, channels): each output is a sum over the places around, zeros outside. A
    kernel of one input channel reads the channel of its output, or the only one."""
    size = weight.shape[2]
    frames, features = (range(-pad, n + pad - size + 1, stride) for n in x.shape[:2])
    outputs = torch.zeros(len(frames), len(features), len(bias), dtype=x.dtype)
    for row, i in enumerate(frames):
        for column, j in enumerate(features):
            y = bias
            for k in range(size):
                for m in range(size):
                    if 0 <= i + k < x.shape[0] and 0 <= j + m < x.shape[1]:
                        y = y + weight[:, 0, k, m] * x[i + k, j + m]
            outputs[row, column] = y
    return outputs


@pytest.mark.parametrize(
    ("fields", "pad"),
    [
        ({"n_features": 8, "n_convolutions": 2}, 1),
        ({"n_features": 7, "n_convolutions": 2, "kernel_size": 4, "stride": 1, "scale": 0.5}, 1),
        ({"n_features": 6, "n_convolutions": 1, "kernel_size": 5, "scale": "sqrt_d_model"}, 2),
    ],
)
@pytest.mark.parametrize("frames", [9, 10])
def test_2d_convolutions(fields: dict[str, Any], pad: int, frames: int) -> None:
    """Figure 1 of Rekesh et al. (2023): the first convolution mixes nothing but places, the others
    places of each channel and then channels."""
    channels = 3
    sizes = {"d_model": D_MODEL, "channels": channels, **fields}
    description = Conv2dFrontend(kind="conv2d_frontend", **sizes)
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=20).build().double()
    nn.init.normal_(scheme.weight)
    module = description.build(scheme).double()
    layout = {name: tensor.shape for name, tensor in description.layout().tensors()}
    w = {n: t for n, t in module.named_parameters() if not n.startswith("positions.")}
    assert layout == {name: tuple(tensor.shape) for name, tensor in w.items()}
    features = torch.randn(2, frames, description.n_features, dtype=torch.float64)
    expected = []
    for x in features[..., None]:
        for number in range(description.n_convolutions):
            name = f"convolutions.{number}" + (".depthwise" if number else "")
            x = convolved_2d(x, w[f"{name}.weight"], w[f"{name}.bias"], description.stride, pad)
            if number:
                name = f"convolutions.{number}.pointwise"
                x = x @ w[f"{name}.weight"][:, :, 0, 0].T + w[f"{name}.bias"]
            x = x.clamp(min=0)
        flat = x.transpose(1, 2).flatten(1)  # all places of the first channel come first
        y = flat @ w["projection.weight"].T + w["projection.bias"]
        scale = math.sqrt(D_MODEL) if description.scale == "sqrt_d_model" else description.scale
        expected.append(y * scale + scheme.weight[: len(y)])
    found = module(features, torch.arange(module.embedded_length(frames)))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(y.square().sum(), list(w.values()))
        for y in (found, torch.stack(expected))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_parameters_of_2d_convolutions() -> None:
    """Those of the published models of 80 bands: 9 weights of each channel in each convolution, a
    matrix of the channels in two, and a map of all that is left of a frame, each with biases."""
    description = Conv2dFrontend(kind="conv2d_frontend", d_model=1024, n_features=80)
    n, left = 256, 10
    expected = 3 * (9 * n + n) + 2 * (n * n + n) + (n * left + 1) * 1024
    assert sum(math.prod(t.shape) for _, t in description.layout().tensors()) == expected


@pytest.mark.parametrize("kernel_size", [2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_most_frames_of_so_many_vectors_of_2d_convolutions(
    kernel_size: int, stride: int
) -> None:
    fields = {"n_convolutions": 2, "kernel_size": kernel_size, "stride": stride, "channels": 2}
    description = Conv2dFrontend(kind="conv2d_frontend", d_model=4, n_features=16, **fields)
    module = description.build()
    for n_vectors in (5, 6):
        most = description.most_inputs(n_vectors)
        for n in (most, most + 1):
            made = module(torch.zeros(1, n, 16), torch.arange(99)).shape[1]
            assert made == module.embedded_length(n) == n_vectors + (n > most)


def test_what_is_too_small_for_2d_convolutions() -> None:
    fields = {"n_convolutions": 2, "kernel_size": 4, "stride": 2, "channels": 2}
    module = Conv2dFrontend(kind="conv2d_frontend", d_model=4, n_features=16, **fields).build()
    assert module.embedded_length(6) == 1
    with pytest.raises(ValueError, match="3 frames are too few for the convolutions"):
        module.embedded_length(3)
    with pytest.raises(ValueError, match="kernels of 4 leave nothing of 2 features"):
        Conv2dFrontend(kind="conv2d_frontend", d_model=4, n_features=2, **fields)


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
