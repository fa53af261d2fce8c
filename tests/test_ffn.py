"""Dense feed-forward networks and activations against their formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from random_values import randomize
from torch import nn

from zoo.slots import FeedForward
from zoo_components.activation import Activated, Activation
from zoo_components.ffn import Conv1d, Glu, Mlp, ResidualStack
from zoo_components.moe import MixtureOfExperts
from zoo_components.norm import LayerNorm, NoNorm, RmsNorm

D_MODEL, D_FF = 6, 10
Tensors = Mapping[str, torch.Tensor]

NONE = NoNorm(kind="none", width=D_MODEL)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def xielu(x: float, alpha_p: float, alpha_n: float) -> float:
    """Equation 14 of Huang and Schlag (2024), with beta = 0.5."""
    if x > 0:
        return softplus(alpha_p) * x**2 + 0.5 * x
    return (0.5 + softplus(alpha_n)) * (math.exp(min(x, -1e-6)) - 1 - x) + 0.5 * x


FORMULAS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "prelu": lambda x: x if x > 0 else 0.125 * x,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x * logistic(1.702 * x),
    "silu": lambda x: x * logistic(x),
    "swish": lambda x: x * logistic(3.5 * x),
    "xielu": lambda x: xielu(x, 0.3, -0.7),
    "tanh": math.tanh,
    "sigmoid": logistic,
    "softplus": softplus,
    "none": lambda x: x,
}
SETTINGS: dict[str, dict[str, float]] = {"prelu": {"slope": 0.125}, "swish": {"beta": 3.5}}


def activation(name: str) -> nn.Module:
    module = Activated(activation=name, **SETTINGS.get(name, {})).build_activation().double()  # type: ignore[arg-type]
    if name == "xielu":
        module.load_state_dict(
            {
                "alpha_p": torch.tensor([0.3], dtype=torch.float64),
                "alpha_n": torch.tensor([-0.7], dtype=torch.float64),
                "beta": torch.tensor(0.5),
                "eps": torch.tensor(-1e-6, dtype=torch.float64),
            }
        )
    return module


def test_every_activation_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(get_args(Activation))


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_and_its_slope_are_those_of_the_formula(name: str) -> None:
    points = [-20.0, -3.0, -1.0, -0.3, -1e-3, 1e-3, 0.4, 1.0, 2.7, 12.0]
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    y = activation(name)(x)
    formula = FORMULAS[name]
    assert y.tolist() == pytest.approx([formula(p) for p in points], rel=1e-12, abs=1e-12)
    (slope,) = torch.autograd.grad(y.sum(), x)
    step = 1e-6
    wanted = [(formula(p + step) - formula(p - step)) / (2 * step) for p in points]
    assert slope.tolist() == pytest.approx(wanted, rel=1e-7, abs=1e-7)


def test_activations_are_those_of_transformers() -> None:
    from transformers.activations import ACT2FN, XIELUActivation
    from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

    x = torch.linspace(-8, 8, 2001)
    theirs = {
        "gelu_tanh": ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"],
        "gelu": ["gelu"],
        "gelu_quick": ["quick_gelu"],
        "relu_squared": ["relu2"],
        "silu": ["silu", "swish"],
    }
    for ours, names in theirs.items():
        for name in names:
            y = activation(ours).float()(x)
            torch.testing.assert_close(y, ACT2FN[name](x), rtol=1e-6, atol=1e-6)
    y = activation("gelu_tanh").float()(x)
    torch.testing.assert_close(y, bloom_gelu_forward(x), rtol=1e-6, atol=1e-6)

    reference = XIELUActivation(dtype=torch.float64)
    module = activation("xielu")
    module.load_state_dict(reference.state_dict())
    torch.testing.assert_close(module(x.double()), reference(x.double()), rtol=1e-6, atol=1e-7)


def test_xielu_starts_where_its_authors_start() -> None:
    from transformers.activations import XIELUActivation

    layout = Activated(activation="xielu").activation_parts()["activation"]
    reference = XIELUActivation(dtype=torch.float64).state_dict()
    assert {name: tensor.value for name, tensor in layout.tensors()} == pytest.approx(
        {name: tensor.item() for name, tensor in reference.items()}
    )
    assert {n for n, t in layout.tensors() if t.buffer} == {"beta", "eps"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation": "relu", "slope": 0.1}, 'goes with `activation = "prelu"`'),
        ({"activation": "prelu", "beta": 1.5}, 'goes with `activation = "swish"`'),
        ({"activation": "prelu", "slope": 0.0}, "greater than 0"),
        ({"activation": "swish", "beta": 1e9}, "less than or equal to 1000000"),
        ({"activation": "swish", "beta": True}, "valid number"),
    ],
)
def test_activation_settings_are_refused_where_they_mean_nothing(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Activated(**values)


def test_activation_settings_are_part_of_a_spec_only_where_they_count() -> None:
    assert Activated(activation="relu").dump() == {"activation": "relu"}
    assert Activated(activation="prelu").dump() == {"activation": "prelu", "slope": 0.25}
    assert Activated(activation="swish", beta=2.0).dump() == {"activation": "swish", "beta": 2.0}


@pytest.mark.parametrize("factor", [1e308, 1e-9])
def test_an_inner_width_that_is_none(factor: float) -> None:
    norm = NoNorm(kind="none", width=8)
    fields = {"kind": "residual_stack", "d_model": 8, "norm": norm, "unit_norm": norm}
    with pytest.raises(ValidationError, match="is no width"):
        ResidualStack(**fields, expansion_factor=factor)


# --- the networks -------------------------------------------------------------------------------


def act(name: str, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """The activation by torch's functions, which the tests above compare with formulas."""
    if name == "prelu":
        return torch.where(x > 0, x, tensors["activation.weight"] * x)
    plain: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": lambda x: x.clamp(min=0),
        "silu": lambda x: x * torch.sigmoid(x),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "none": lambda x: x,
        "relu_squared": lambda x: x.clamp(min=0) ** 2,
    }
    return plain[name](x)


def affine(x: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
    y = torch.einsum("oi,...i->...o", tensors[f"{name}.weight"], x)
    return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y


def layer_norm(x: torch.Tensor, tensors: Tensors, name: str, eps: float) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / ((centred**2).mean(-1, keepdim=True) + eps) ** 0.5
    return tensors[f"{name}.weight"] * normed + tensors[f"{name}.bias"]


def rms_norm(x: torch.Tensor, tensors: Tensors, name: str, eps: float) -> torch.Tensor:
    return tensors[f"{name}.weight"] * x / ((x**2).mean(-1, keepdim=True) + eps) ** 0.5


def mlp(ffn: Mlp, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    hidden = act(ffn.activation, affine(x, tensors, "up_proj"), tensors)
    if isinstance(ffn.sub_norm, RmsNorm):
        hidden = rms_norm(hidden, tensors, "sub_norm", 0.1)
    return affine(hidden, tensors, "down_proj")


def glu(ffn: Glu, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    gate = act(ffn.activation, affine(x, tensors, "gate_proj"), tensors)
    hidden = gate * affine(x, tensors, "up_proj")
    if isinstance(ffn.sub_norm, RmsNorm):
        hidden = rms_norm(hidden, tensors, "sub_norm", 0.1)
    return affine(hidden, tensors, "down_proj")


def conv1d(ffn: Conv1d, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    def conv(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = tensors[f"{name}.weight"]
        size = weight.shape[-1]
        before = (size - 1) // 2
        y = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=x.dtype)
        if ffn.bias:
            y = y + tensors[f"{name}.bias"]
        rows = []
        for position in range(x.shape[-2]):
            row = y[..., position, :]
            for tap in range(size):
                source = position + tap - before
                if 0 <= source < x.shape[-2]:
                    row = row + torch.einsum("oi,...i->...o", weight[:, :, tap], x[..., source, :])
            rows.append(row)
        return torch.stack(rows, -2)

    return conv(act(ffn.activation, conv(x, "up_proj"), tensors), "down_proj")


def residual_stack(ffn: ResidualStack, x: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    start = x
    for _ in range(ffn.n_units):
        normed = layer_norm(x, tensors, "unit_norm", 0.1)
        hidden = act(ffn.activation, affine(normed, tensors, "up_proj"), tensors)
        x = x + affine(hidden, tensors, "down_proj")
    return x - start


def case(cls: type[FeedForward], formula: Callable[..., torch.Tensor], **values: Any) -> Any:
    kind = {Mlp: "mlp", Glu: "glu", Conv1d: "conv1d", ResidualStack: "residual_stack"}[cls]  # type: ignore[index]
    if cls is not ResidualStack:
        values["d_ff"] = D_FF
    ffn = cls(kind=kind, d_model=D_MODEL, norm=NONE, **values)
    words = (f"{key}={getattr(value, 'kind', value)}" for key, value in values.items())
    return pytest.param(ffn, formula, id=f"{kind},{','.join(words)}")


INNER = {"sub_norm": RmsNorm(kind="rms_norm", width=D_FF, eps=0.1)}
UNIT = {"unit_norm": LayerNorm(kind="layer_norm", width=D_MODEL, eps=0.1)}
NETWORKS = [
    case(Mlp, mlp),
    case(Mlp, mlp, bias=False, activation="gelu"),
    case(Mlp, mlp, bias="down", activation="silu"),
    case(Mlp, mlp, activation="prelu", slope=0.3),
    case(Mlp, mlp, activation="relu_squared", **INNER),
    case(Glu, glu),
    case(Glu, glu, bias=False, activation="gelu"),
    case(Glu, glu, bias="down"),
    case(Glu, glu, activation="none"),
    case(Glu, glu, activation="prelu", **INNER),
    case(Conv1d, conv1d),
    case(Conv1d, conv1d, kernel_size=3, activation="silu"),
    case(Conv1d, conv1d, kernel_size=4, bias=False),
    case(ResidualStack, residual_stack, n_units=1, activation="relu", **UNIT),
    case(ResidualStack, residual_stack, n_units=3, expansion_factor=2.5, bias=False, **UNIT),
]
each_network = pytest.mark.parametrize(("ffn", "formula"), NETWORKS)


def randomised(ffn: FeedForward, seed: int = 0) -> nn.Module:
    return randomize(ffn.build().double(), seed=seed)


@each_network
def test_network_and_its_gradients_are_those_of_the_formula(
    ffn: FeedForward, formula: Callable[..., torch.Tensor]
) -> None:
    module = randomised(ffn)
    x = torch.randn(2, 5, D_MODEL, dtype=torch.float64, requires_grad=True)
    tensors = dict(module.named_parameters())
    y, expected = module(x), formula(ffn, x, tensors)
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
    weights = torch.randn_like(y)
    wanted = [x, *tensors.values()]
    found = torch.autograd.grad((y * weights).sum(), wanted)
    true = torch.autograd.grad((expected * weights).sum(), wanted)
    for ours, theirs in zip(found, true, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@each_network
def test_layout_is_what_is_built(ffn: FeedForward, formula: object) -> None:
    module = ffn.build()
    layout = dict(ffn.layout().tensors())
    assert {name: tensor.shape for name, tensor in layout.items()} == {
        name: tuple(tensor.shape) for name, tensor in module.state_dict().items()
    }
    assert ffn.layout().n_parameters == sum(p.numel() for p in module.parameters())
    residual = {name for name, tensor in layout.items() if tensor.role == "residual"}
    assert residual == {"down_proj.weight"}
    biases = {name for name, tensor in layout.items() if tensor.role == "bias"}
    stated = "sub_norm", "unit_norm"
    assert {n for n in biases if not n.startswith(stated)} == {
        name for name in layout if name.endswith("proj.bias")
    }
    maps = {name.removesuffix(".weight") for name in layout if name.endswith("proj.weight")}
    with_bias = {True: maps, False: set(), "down": {"down_proj"}}[ffn.bias]  # type: ignore[attr-defined]
    assert {name for name in maps if f"{name}.bias" in layout} == with_bias


@pytest.mark.parametrize("kind", ["mlp", "glu", "conv1d"])
def test_dropout_is_before_the_last_map(kind: str) -> None:
    cls = {"mlp": Mlp, "glu": Glu, "conv1d": Conv1d}[kind]
    ffn = cls(
        kind=kind, d_model=400, d_ff=400, norm=NONE, bias=False, activation="none", dropout=0.25
    )
    module = ffn.build().double()
    one = torch.eye(400, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # The last map sums its inputs into each output.
            value = torch.ones_like(one) if name.startswith("down") else one
            parameter.copy_(value.view_as(parameter))
    y = module(torch.ones(1, 50, 400, dtype=torch.float64))
    # Each of 400 ones is 0 with probability 0.25, or 4/3: a deviation of 11.5 around 400.
    torch.testing.assert_close(y, y[..., :1].expand_as(y))
    kept = y[..., 0] / (4 / 3)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    assert y[..., 0].mean().item() == pytest.approx(400, abs=8)
    assert 5 < y[..., 0].std().item() < 20
    torch.testing.assert_close(module.eval()(torch.ones(1, 2, 400).double())[0, 0, 0].item(), 400.0)


@pytest.mark.parametrize("kind", ["mlp", "glu"])
def test_dropout_is_after_the_inner_norm(kind: str) -> None:
    cls = {"mlp": Mlp, "glu": Glu}[kind]
    norm = RmsNorm(kind="rms_norm", width=64, eps=1e-12)
    ffn = cls(kind=kind, d_model=64, d_ff=64, norm=NONE, bias=False, sub_norm=norm, dropout=0.5)
    module = ffn.build().double()
    with torch.no_grad():
        module.down_proj.weight.copy_(torch.eye(64))
    x = torch.rand(3, 64, dtype=torch.float64) + 0.1  # nothing that an activation makes zero
    y, whole = module(x), module.eval()(x)
    kept = y != 0
    # 192 draws of a half have a deviation of 0.036.
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(y[kept], 2 * whole[kept])


def test_the_fans_of_a_convolution_are_those_of_torch() -> None:
    """Each position of a kernel counts as an input; the bias has the fans of its weight."""
    conv = Conv1d(kind="conv1d", d_model=D_MODEL, d_ff=D_FF, kernel_size=3, norm=NONE)
    tensors = dict(conv.layout().tensors())
    for name in ("up_proj", "down_proj"):
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        expected = nn.init._calculate_fan_in_and_fan_out(torch.empty(weight.shape))
        assert (weight.fan_in, weight.fan_out) == (bias.fan_in, bias.fan_out) == expected


def test_convolutions_of_one_position_are_the_mlp() -> None:
    conv = randomised(Conv1d(kind="conv1d", d_model=D_MODEL, d_ff=D_FF, norm=NONE))
    plain = Mlp(kind="mlp", d_model=D_MODEL, d_ff=D_FF, norm=NONE).build().double()
    plain.load_state_dict(
        {n: t.squeeze(-1) if n.endswith("weight") else t for n, t in conv.state_dict().items()}
    )
    x = torch.randn(2, 5, D_MODEL, dtype=torch.float64)
    torch.testing.assert_close(conv(x), plain(x))


def test_defaults_are_those_of_the_papers() -> None:
    common: dict[str, Any] = {"d_model": D_MODEL, "d_ff": D_FF, "norm": NONE}
    assert Mlp(kind="mlp", **common).activation == "relu"
    assert Glu(kind="glu", **common).activation == "silu"
    assert Conv1d(kind="conv1d", **common).activation == "relu"
    stack = ResidualStack(kind="residual_stack", d_model=D_MODEL, norm=NONE, **UNIT)
    assert (stack.activation, stack.slope, stack.d_ff) == ("prelu", 0.25, 4 * D_MODEL)


@pytest.mark.parametrize("cls", [Mlp, Glu, Conv1d, ResidualStack, MixtureOfExperts])
def test_activation_comes_before_what_depends_on_it(cls: type[Activated]) -> None:
    fields = list(cls.model_fields)
    assert fields.index("activation") < fields.index("slope")
    assert fields.index("activation") < fields.index("beta")
