"""Norms against their formulas in float64, and against transformers in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import nn

import zoo
from zoo.slots import Norm
from zoo_components.modules.heads import PerHeadNorm
from zoo_components.norm import (
    BatchNorm,
    DynamicTanh,
    LayerNorm,
    NoNorm,
    RmsNorm,
    ScaleNorm,
    StdNorm,
)

WIDTH = 24
Formula = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]


def layer_norm(
    x: torch.Tensor, tensors: dict[str, torch.Tensor], eps: float, one: float
) -> torch.Tensor:
    mean = x.sum(-1, keepdim=True) / WIDTH
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / WIDTH
    y = (x - mean) / (variance + eps) ** 0.5
    if "weight" in tensors:
        y = y * (one + tensors["weight"])
    return y + tensors["bias"] if "bias" in tensors else y


def rms_norm(
    x: torch.Tensor, tensors: dict[str, torch.Tensor], eps: float, one: float
) -> torch.Tensor:
    y = x / ((x**2).sum(-1, keepdim=True) / WIDTH + eps) ** 0.5
    return y * (one + tensors["weight"]) if "weight" in tensors else y


def std_norm(x: torch.Tensor, tensors: dict[str, torch.Tensor], eps: float) -> torch.Tensor:
    centred = x - x.sum(-1, keepdim=True) / WIDTH
    std = ((centred**2).sum(-1, keepdim=True) / (WIDTH - 1)) ** 0.5
    return tensors["weight"] * centred / (std + eps) + tensors["bias"]


def dynamic_tanh(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    grown = (2 * tensors["alpha"] * x).exp()
    return tensors["weight"] * (1 - 2 / (grown + 1)) + tensors["bias"]


def scale_norm(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return tensors["weight"] * x / (x**2).sum(-1, keepdim=True) ** 0.5


# Epsilons are so large that a misplaced one is noticeable.
CASES: list[tuple[Norm, Formula]] = (
    [
        (
            LayerNorm(
                kind="layer_norm", width=WIDTH, eps=0.1, weight=w, bias=b, zero_centered_weight=z
            ),
            lambda x, t, z=z: layer_norm(x, t, 0.1, float(z)),
        )
        for w, z in [(True, False), (True, True), (False, False)]
        for b in [True, False]
    ]
    + [
        (
            RmsNorm(
                kind="rms_norm",
                width=WIDTH,
                eps=0.1,
                weight=w,
                zero_centered_weight=z,
                cast=cast,  # type: ignore[arg-type]
            ),
            lambda x, t, z=z: rms_norm(x, t, 0.1, float(z)),
        )
        for w, z, cast in [
            (True, False, "after_weight"),
            (True, False, "before_weight"),
            (True, True, "after_weight"),
            (True, True, "before_weight"),
            (False, False, "after_weight"),
        ]
    ]
    + [
        (StdNorm(kind="std_norm", width=WIDTH, eps=0.1), lambda x, t: std_norm(x, t, 0.1)),
        (ScaleNorm(kind="scale_norm", width=WIDTH), scale_norm),
        (DynamicTanh(kind="dynamic_tanh", width=WIDTH), dynamic_tanh),
        (NoNorm(kind="none", width=WIDTH), lambda x, t: x),
    ]
)


def described(norm: Norm) -> str:
    return ",".join(f"{key}={value}" for key, value in norm.dump().items())


each_norm = pytest.mark.parametrize(
    ("norm", "formula"), CASES, ids=lambda v: described(v) if isinstance(v, Norm) else ""
)


def randomised(norm: Norm, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    module = norm.build().to(dtype)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=random, dtype=torch.float64))
    return module


def inputs(dtype: torch.dtype = torch.float64, rows: int = 7) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(3, rows, WIDTH, generator=random, dtype=torch.float64) + 1.5
    return x.to(dtype)


@each_norm
def test_output_and_gradients_are_those_of_the_formula(norm: Norm, formula: Formula) -> None:
    module = randomised(norm)
    x = inputs().requires_grad_()
    tensors = dict(module.named_parameters())
    y, expected = module(x), formula(x, tensors)
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)

    weights = torch.randn_like(y)
    wanted = [x, *tensors.values()]
    found = torch.autograd.grad((y * weights).sum(), wanted)
    for grad, true in zip(
        found, torch.autograd.grad((expected * weights).sum(), wanted), strict=True
    ):
        torch.testing.assert_close(grad, true, rtol=1e-12, atol=1e-12)


@each_norm
def test_float32_is_as_accurate_as_the_functional(norm: Norm, formula: Formula) -> None:
    x = inputs(torch.float32, rows=500) + 30
    module = randomised(norm, torch.float32)
    wide = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
    error = (module(x).double() - formula(x.double(), wide)).abs().max()
    if isinstance(norm, LayerNorm | StdNorm):  # these subtract a mean
        reference = F.layer_norm(x, (WIDTH,)).double() - layer_norm(x.double(), {}, 1e-5, 0.0)
    else:
        reference = F.rms_norm(x, (WIDTH,), eps=0.1).double() - rms_norm(x.double(), {}, 0.1, 0.0)
    # Theirs has no weight; ours has weights of up to 4.
    assert error <= 8 * reference.abs().max()


@each_norm
def test_bfloat16_rounds_a_float32_result_once(norm: Norm, formula: Formula) -> None:
    module = randomised(norm, torch.bfloat16)
    x = inputs(torch.bfloat16, rows=400)
    y = module(x)
    assert y.dtype == torch.bfloat16
    wide = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
    if isinstance(norm, RmsNorm) and norm.cast == "before_weight":
        normed = formula(x.double(), {}).bfloat16()
        expected = normed * (wide["weight"].bfloat16() + norm.zero_centered_weight)
    else:
        expected = formula(x.double(), wide).bfloat16()
    # If the float32 result is halfway between two bfloat16 values, either is right.
    assert (y != expected).double().mean() < 1e-3
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=1e-3)


def test_bfloat16_is_that_of_published_models() -> None:
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = inputs(torch.bfloat16, rows=400)
    rms: dict[str, Any] = {"kind": "rms_norm", "width": WIDTH, "eps": 1e-3}
    cases: list[tuple[Norm, nn.Module]] = [
        (RmsNorm(**rms, cast="before_weight"), LlamaRMSNorm(WIDTH, eps=1e-3)),
        (RmsNorm(**rms), GptOssRMSNorm(WIDTH, eps=1e-3)),
        (RmsNorm(**rms, zero_centered_weight=True), Gemma2RMSNorm(WIDTH, eps=1e-3)),
        (
            LayerNorm(kind="layer_norm", width=WIDTH, eps=1e-3, bias=False),
            CohereLayerNorm(WIDTH, eps=1e-3),
        ),
    ]
    for norm, theirs in cases:
        ours = randomised(norm, torch.bfloat16)
        theirs = theirs.bfloat16()
        theirs.load_state_dict(ours.state_dict())
        assert (ours(x) != theirs(x)).double().mean() < 1e-3, described(norm)


@each_norm
@pytest.mark.filterwarnings("error")
def test_autocast_takes_weights_that_are_wider_than_x(norm: Norm, formula: Formula) -> None:
    """As for `qk_norm` under autocast: float32 weights, bfloat16 queries."""
    module = randomised(norm, torch.float32)
    x = inputs(torch.bfloat16, rows=400)
    torch.set_warn_always(True)  # otherwise torch warns of a slow path only once in a process
    try:
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
    finally:
        torch.set_warn_always(False)
    wide = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
    torch.testing.assert_close(y.double(), formula(x.double(), wide), rtol=2**-7, atol=1e-2)


@each_norm
def test_autocast_trains_weights_that_are_wider_than_x(norm: Norm, formula: Formula) -> None:
    module = randomised(norm, torch.float32)
    x = inputs(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    weights = torch.randn(y.shape)
    found = torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])
    tensors = {n: t.detach().double().requires_grad_() for n, t in module.named_parameters()}
    wide = x.detach().double().requires_grad_()
    loss = (formula(wide, tensors) * weights).sum()
    for grad, true in zip(found, torch.autograd.grad(loss, [wide, *tensors.values()]), strict=True):
        # Gradients of weights are sums over 21 vectors, each of which autocast may have rounded.
        torch.testing.assert_close(grad.double(), true, rtol=2**-6, atol=0.1)


@each_norm
def test_x_that_is_wider_than_the_weights(norm: Norm, formula: Formula) -> None:
    """As for what the heads of `gated_delta` read, in a bfloat16 model."""
    module = randomised(norm, torch.bfloat16)
    x = inputs(torch.float32)
    y = module(x)
    assert y.dtype == torch.float32
    wide = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
    torch.testing.assert_close(y.double(), formula(x.double(), wide), rtol=2**-7, atol=1e-2)


@each_norm
@pytest.mark.parametrize("broadcasts", [True, False])
def test_each_head_with_parameters_of_its_own(
    norm: Norm, formula: Formula, broadcasts: bool
) -> None:
    """Called once for all heads, as the norms here may be, or once for each, as a plugin's."""
    module = PerHeadNorm(norm.build(), n_heads=3, broadcasts=broadcasts).double()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.normal_()
    x = inputs().expand(2, 3, 7, WIDTH)
    y = module(x)
    for head in range(3):
        own = {name: tensor[head] for name, tensor in module.named_parameters()}
        expected = formula(x[:, head], own)
        torch.testing.assert_close(y[:, head], expected, rtol=1e-12, atol=1e-12)


def test_layer_norm_1p_is_that_of_nemotron() -> None:
    from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

    ours = randomised(
        LayerNorm(kind="layer_norm", width=WIDTH, eps=1e-3, zero_centered_weight=True)
    ).float()
    theirs = NemotronLayerNorm1P(WIDTH, eps=1e-3)
    theirs.load_state_dict(ours.state_dict())
    x = inputs(torch.float32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


def test_scale_norm_divides_short_vectors_by_eps() -> None:
    module = ScaleNorm(kind="scale_norm", width=4, eps=0.5).build().double()
    x = torch.tensor([[0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0]]).double()
    g = module.weight
    torch.testing.assert_close(module(x)[0], g * 0.2 * torch.ones(4).double())
    torch.testing.assert_close(module(x)[2], g * torch.tensor([0.6, 0.0, 0.8, 0.0]).double())
    x.requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_dynamic_tanh_starts_at_its_alpha() -> None:
    """Of small numbers the tanh is the number itself."""
    spec = {"format": 1, "name": "a", "builder": "decoder", "vocab": 5, "n_layers": 1, "d_model": 8}
    spec |= {"n_heads": 2, "d_ff": 8, "norm": {"kind": "dynamic_tanh", "alpha": 0.2}}
    norm = zoo.build(spec, dtype=torch.float64).get_submodule("decoder.norm")
    x = torch.linspace(-1e-6, 1e-6, 8, dtype=torch.float64)
    torch.testing.assert_close(norm(x), 0.2 * x, rtol=1e-6, atol=0)


def test_batch_norm_sees_each_feature_over_all_positions() -> None:
    module = randomised(BatchNorm(kind="batch_norm", width=WIDTH, eps=0.1, momentum=0.3))
    x = inputs()
    flat = x.reshape(-1, WIDTH)
    mean = flat.sum(0) / len(flat)
    variance = ((flat - mean) ** 2).sum(0) / len(flat)
    weight, bias = module.weight, module.bias

    def formula(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return (x - mean) / (variance + 0.1) ** 0.5 * weight + bias

    torch.testing.assert_close(module(x), formula(mean, variance))
    running_mean, running_var = 0.3 * mean, 0.7 + 0.3 * variance * len(flat) / (len(flat) - 1)
    torch.testing.assert_close(module.running_mean, running_mean)
    torch.testing.assert_close(module.running_var, running_var)
    module.eval()
    torch.testing.assert_close(module(x), formula(running_mean, running_var))

    exact = module(x).detach().float()
    narrow = module.bfloat16()(x.float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, exact, rtol=2**-6, atol=0.05)


@pytest.mark.parametrize(
    "norm",
    [*(norm for norm, _ in CASES), BatchNorm(kind="batch_norm", width=WIDTH)],
    ids=described,
)
def test_layout_is_what_is_built_and_starts_without_scaling(norm: Norm) -> None:
    module = norm.build()
    layout = dict(norm.layout().tensors())
    state = module.state_dict()
    assert {name: tensor.shape for name, tensor in layout.items()} == {
        name: tuple(tensor.shape) for name, tensor in state.items()
    }
    parameters = {name for name, tensor in layout.items() if not tensor.buffer}
    assert parameters == {name for name, _ in module.named_parameters()}
    start = {"bias": 0.0} | {n: t.value for n, t in layout.items() if t.role == "constant"}
    module.load_state_dict({n: torch.full_like(state[n], start[n]) for n in layout})
    # Elements that are large beside eps: all norms bring a vector to a length of sqrt(width), or of
    # sqrt(width - 1) where the unbiased deviation is 1.
    x = 1000 * inputs(torch.float32)
    y = module.eval()(x)
    if isinstance(norm, NoNorm | BatchNorm):
        torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-4)
    else:
        wanted = torch.tensor(WIDTH - isinstance(norm, StdNorm)).sqrt()
        torch.testing.assert_close(y.norm(dim=-1), wanted.expand(y.shape[:-1]), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (LayerNorm, {"kind": "layer_norm", "weight": False, "zero_centered_weight": True}),
        (RmsNorm, {"kind": "rms_norm", "weight": False, "zero_centered_weight": True}),
        (RmsNorm, {"kind": "rms_norm", "weight": False, "cast": "before_weight"}),
    ],
)
def test_what_speaks_of_a_weight_needs_one(cls: type[Norm], values: dict[str, Any]) -> None:
    key = list(values)[-1]
    with pytest.raises(ValidationError, match=f"`{key}` speaks of a weight that is not there"):
        cls(width=WIDTH, **values)
    cls(width=WIDTH, **(values | {"weight": True}))


@pytest.mark.parametrize("eps", [0.0, -1e-6, float("nan"), float("inf")])
@pytest.mark.parametrize("cls", [LayerNorm, RmsNorm, StdNorm, ScaleNorm, BatchNorm])
def test_epsilons_are_positive(cls: type[Norm], eps: float) -> None:
    with pytest.raises(ValidationError, match=r"greater than 0|finite number"):
        cls(kind="x", width=WIDTH, eps=eps)  # type: ignore[call-arg]


def test_one_number_has_no_standard_deviation() -> None:
    with pytest.raises(ValidationError, match="no unbiased standard deviation"):
        StdNorm(kind="std_norm", width=1)


@pytest.mark.parametrize("kind", [LayerNorm, RmsNorm])
def test_a_printed_norm_tells_its_width_and_eps(kind: type[LayerNorm] | type[RmsNorm]) -> None:
    module = kind(kind="any", width=WIDTH, eps=1e-3).build()
    assert str(module) == f"{kind.__name__}({WIDTH}, eps=0.001)"
