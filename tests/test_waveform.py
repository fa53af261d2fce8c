"""Convolutions over the samples of a sound, against sums over samples and `torch`'s weight norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo_components.norm import LayerNorm, NoNorm
from zoo_components.position import Learned
from zoo_components.waveform import Waveform, WaveformStem

D_MODEL, D_CONV = 8, 6


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def normed(x: Tensor, axis: int) -> Tensor:
    """Zero mean and unit variance along an axis, with eps = 1e-5."""
    centred = x - x.mean(axis, keepdim=True)
    return centred / (centred.square().mean(axis, keepdim=True) + 1e-5).sqrt()


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """(length, channels): each output is a sum over the inputs inside a window."""
    kernel = weight.shape[2]
    outputs = []
    for start in range(0, len(x) - kernel + 1, stride):
        y = sum(weight[:, :, k] @ x[start + k] for k in range(kernel))
        outputs.append(y if bias is None else y + bias)
    return torch.stack(outputs)


def near(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    """(length, width): sums over the places around each, zeros outside, within each group. Of an
    even kernel, one place more lies before than after."""
    kernel, width = weight.shape[2], x.shape[1] // groups
    padded = torch.cat([x.new_zeros(kernel // 2, x.shape[1]), x, x.new_zeros(kernel, x.shape[1])])
    found = []
    for group in range(groups):
        own = slice(group * width, (group + 1) * width)
        found.append(convolved(padded[:, own], weight[own], bias[own], 1)[: len(x)])
    return torch.cat(found, 1)


def built(description: Waveform | WaveformStem) -> tuple[Any, dict[str, Tensor], Tensor]:
    """The module with random values in float64, its own tensors, which are those of its layout, and
    the vectors of 20 positions, which are the scheme's."""
    scheme = Learned(kind="learned", d_model=D_MODEL, max_length=20).build()
    module = description.build(scheme).double()
    for tensor in module.parameters():
        nn.init.normal_(tensor)
    w = {n: t for n, t in module.named_parameters() if not n.startswith("positions.")}
    layout = {name: tensor.shape for name, tensor in description.layout().tensors()}
    assert layout == {name: tuple(tensor.shape) for name, tensor in w.items()}
    return module, w, scheme.weight


def check_with_gradients(found: Tensor, expected: Tensor, w: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    ours, theirs = (
        torch.autograd.grad(y.square().sum(), list(w.values())) for y in (found, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"conv_norm": "layer", "bias": True},
        {"position_kernel_size": 3, "position_groups": 1},
        {"position_layers": 2, "position_norm": "layer"},
        {"position_layers": 0, "position_kernel_size": None, "position_groups": None},
    ],
)
@pytest.mark.parametrize("with_norms", [True, False])
def test_convolutions(fields: dict[str, Any], with_norms: bool) -> None:
    values = {"position_kernel_size": 4, "position_groups": 2, **fields}
    description = Waveform(
        kind="waveform",
        d_model=D_MODEL,
        d_conv=D_CONV,
        kernel_sizes=(5, 2, 3),
        strides=(3, 1, 2),
        feature_norm=norm(D_CONV) if with_norms else NoNorm(kind="none", width=D_CONV),
        norm=norm(D_MODEL) if with_norms else NoNorm(kind="none", width=D_MODEL),
        **values,
    )
    module, w, places = built(description)

    waveforms = torch.randn(2, 40, 1, dtype=torch.float64)
    length = module.embedded_length(40)
    assert length == ((40 - 5) // 3 + 1 - 1 - 3) // 2 + 1 == 5
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = torch.stack(
        [one(description, w, x, real, places) for x, real in zip(waveforms, mask, strict=True)]
    )
    found = module(waveforms, torch.arange(length), mask=mask)
    check_with_gradients(found, expected, w)


def norm(width: int) -> LayerNorm:
    return LayerNorm(kind="layer_norm", width=width)


def one(d: Waveform, w: dict[str, Tensor], x: Tensor, real: Tensor, positions: Tensor) -> Tensor:
    """The vectors of one sound, (length, d_model)."""
    for number, stride in enumerate(d.strides):
        name = f"convolutions.{number}"
        x = convolved(x, w[f"{name}.weight"], w.get(f"{name}.bias"), stride)
        if d.conv_norm == "layer" or number == 0:
            x = normed(x, 1 if d.conv_norm == "layer" else 0)
            x = x * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]
        x = gelu(x)
    if "feature_norm.weight" in w:
        x = normed(x, 1) * w["feature_norm.weight"] + w["feature_norm.bias"]
    x = x @ w["projection.weight"].T + w["projection.bias"]
    x = x * real[:, None]
    y = x
    for number in range(d.position_layers):
        name = f"position_convolutions.{number}"
        weight = w[f"{name}.weight"]
        if d.position_norm == "weight":
            weight = torch._weight_norm(weight, w[f"{name}.gain"], 2)
        assert d.position_groups is not None
        y = near(y, weight, w[f"{name}.bias"], d.position_groups)
        y = gelu(y if d.position_norm == "weight" else normed(y, 1))
    x = (x + y if d.position_layers else x) + positions[: len(x)]
    return normed(x, 1) * w["norm.weight"] + w["norm.bias"] if "norm.weight" in w else x


def spec(**changes: Any) -> dict[str, Any]:
    data = {"format": 1, "name": "m", "builder": "encoder", "n_layers": 1, "d_model": 8}
    data |= {"n_heads": 2, "d_ff": 4, "head": "none", "position": "none"}
    embedding = {"kind": "waveform", "d_conv": 6, "position_kernel_size": 4, "position_groups": 2}
    return data | {"embedding": embedding | changes}


def test_a_model_of_sounds() -> None:
    """As wav2vec 2.0 has it: 400 samples are needed, and each 320 more make one more state."""
    model = zoo.build(spec()).eval()
    assert model.spec.model.shortest_sound == 400
    sound = torch.randn(2, 1040, 1)
    assert model(sound).shape == (2, 3, 8)
    assert model(sound[:, :400]).shape == (2, 1, 8)
    with pytest.raises(
        ValueError, match="a sound of 399 samples is too short: the model takes 400"
    ):
        model(sound[:, :399])
    torch.testing.assert_close(model(sound[0]), model(sound[:1])[0])
    mask = torch.tensor([[True, True, False]]).expand(2, -1)
    assert not torch.allclose(model(sound, source_mask=mask)[:, :2], model(sound)[:, :2])


def test_the_convolutions_for_positions_start_as_in_fairseq() -> None:
    """Their weights have the variance 4 / (kernel size * d_model), whatever the init."""
    for init in ("xavier", "normal"):
        model = zoo.build(spec(position_kernel_size=128) | {"d_model": 64, "init": init})
        weight = model.get_submodule("encoder.frontend.position_convolutions.0").scaled_weight()
        assert weight.std().item() == pytest.approx(2 * (128 * 64) ** -0.5, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": [1]}, "there are 7 kernel sizes and 1 strides"),
        ({"position_groups": 3}, "d_model = 8 cannot be divided into 3 groups"),
        ({"position_layers": 0}, "changes nothing beside `position_layers = 0`"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(zoo.SpecError, match=message):
        zoo.read_spec(spec(**changes))


@pytest.mark.parametrize(
    "fields",
    [
        {"kernel_sizes": (5, 2, 3), "strides": (3, 1, 2)},
        {"kernel_sizes": (4, 3), "strides": (2, 3), "widths": (5,), "eps": 0.1},
        {"kernel_sizes": (4,), "strides": (3,), "widths": ()},
    ],
)
def test_a_stem(fields: dict[str, Any]) -> None:
    """Section 3.1 of Jeffries et al. (2024)."""
    description = WaveformStem(kind="waveform_stem", d_model=D_MODEL, **fields)
    module, w, places = built(description)
    waveforms = torch.randn(2, 40, 1, dtype=torch.float64)
    expected = []
    for x in waveforms:
        for number, stride in enumerate(description.strides):
            name = f"convolutions.{number}"
            x = convolved(x, w[f"{name}.weight"], w.get(f"{name}.bias"), stride)
            if number:
                x = gelu(x)
            else:
                x = x.tanh()
                spread = (x.var(correction=0) + description.eps).sqrt()
                x = (x - x.mean()) / spread * w["norm.weight"] + w["norm.bias"]
        expected.append(x + places[: len(x)])
    length = module.embedded_length(40)
    found = module(waveforms, torch.arange(length))
    check_with_gradients(found, torch.stack(expected), w)


def test_the_stem_of_a_published_model() -> None:
    """A state is of 384 samples, 24 milliseconds; the parameters are those of three convolutions,
    the first without biases, and of a norm."""
    description = WaveformStem(kind="waveform_stem", d_model=288)
    d = 288
    expected = 127 * d + (7 * d + 1) * 2 * d + (3 * 2 * d + 1) * d + 2 * d
    assert sum(math.prod(t.shape) for _, t in description.layout().tensors()) == expected
    with torch.device("meta"):
        module = description.build()
    lengths = [module.embedded_length(n) for n in (895, 895 + 383, 895 + 384)]
    assert (description.shortest_sound, lengths) == (895, [1, 1, 2])
    with pytest.raises(ValueError, match="a sound of 894 samples is too short"):
        module.embedded_length(894)


def test_a_width_of_each_convolution_but_the_last() -> None:
    with pytest.raises(ValueError, match="2 convolutions have 1 `widths` beside d_model"):
        WaveformStem(kind="waveform_stem", d_model=8, kernel_sizes=(3, 2), strides=(1, 1))
