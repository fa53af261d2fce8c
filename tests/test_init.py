"""Initial weights: samples of the distribution of each init, against closed forms and
torch.nn.init."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from torch import nn

import zoo
from zoo.distribution import Constant
from zoo.fill import fill
from zoo.layout import LayerList, Layout, Placed, Tensor, embedding, linear
from zoo.registry import load_registry
from zoo.slots import Init
from zoo_components.initial import (
    DepthScaledInit,
    KaimingInit,
    NormalInit,
    TorchInit,
    TruncatedNormalInit,
    XavierInit,
)

N_IN, N_OUT = 400, 700
WEIGHT = linear(N_IN, N_OUT).find("weight")
RESIDUAL = linear(N_IN, N_OUT, residual=True).find("weight")
BIAS = linear(N_IN, N_OUT).find("bias")
EMBEDDING = embedding(900, N_IN).find("weight")


def drawn(init: Init, tensor: Tensor, name: str = "w") -> torch.Tensor:
    values = torch.empty(tensor.shape)
    fill({name: (values, init.start_of(tensor))}, seed=5)
    return values


def uniform(bound: float) -> Any:
    return stats.uniform(-bound, 2 * bound)


def cut_normal(std: float, cut: float) -> Any:
    return stats.truncnorm(-cut, cut, scale=std)


XAVIER = XavierInit(kind="xavier")
XAVIER_NORMAL = XavierInit(kind="xavier", draw="normal", gain=1.5, embedding_std=0.3)
KAIMING = KaimingInit(kind="kaiming")
KAIMING_UNIFORM = KaimingInit(
    kind="kaiming", fan="out", draw="uniform", gain=1.0, embedding_std=0.02
)
NORMAL = NormalInit(kind="normal")
NORMAL_BY_ROLE = NormalInit(kind="normal", std=0.05, residual_std=0.01, embedding_std=0.3)
TRUNCATED = TruncatedNormalInit(kind="truncated_normal")
TRUNCATED_BY_ROLE = TruncatedNormalInit(
    kind="truncated_normal", std=0.05, residual_std=0.01, embedding_std=0.3, cut=3.0
)
SCALED = DepthScaledInit(kind="depth_scaled", n_layers=12)
SCALED_MORE = DepthScaledInit(
    kind="depth_scaled", n_layers=6, branches_per_layer=3, std=0.05, embedding_std=0.3
)
TORCH = TorchInit(kind="torch")

# The distribution for each role, for maps from 400 to 700, and for tables of 900 rows of 400.
CASES: list[tuple[Init, Tensor, Any]] = [
    (XAVIER, WEIGHT, uniform((6 / 1100) ** 0.5)),
    (XAVIER, RESIDUAL, uniform((6 / 1100) ** 0.5)),
    (XAVIER, EMBEDDING, uniform((6 / 1300) ** 0.5)),
    (XAVIER_NORMAL, WEIGHT, stats.norm(scale=1.5 * (2 / 1100) ** 0.5)),
    (XAVIER_NORMAL, EMBEDDING, stats.norm(scale=0.3)),
    (KAIMING, WEIGHT, stats.norm(scale=(2 / 400) ** 0.5)),
    (KAIMING, RESIDUAL, stats.norm(scale=(2 / 400) ** 0.5)),
    (KAIMING, EMBEDDING, stats.norm(scale=1.0)),
    (KAIMING_UNIFORM, WEIGHT, uniform((3 / 700) ** 0.5)),
    (KAIMING_UNIFORM, EMBEDDING, stats.norm(scale=0.02)),
    (NORMAL, WEIGHT, stats.norm(scale=0.02)),
    (NORMAL, RESIDUAL, stats.norm(scale=0.02)),
    (NORMAL, EMBEDDING, stats.norm(scale=0.02)),
    (NORMAL_BY_ROLE, WEIGHT, stats.norm(scale=0.05)),
    (NORMAL_BY_ROLE, RESIDUAL, stats.norm(scale=0.01)),
    (NORMAL_BY_ROLE, EMBEDDING, stats.norm(scale=0.3)),
    (TRUNCATED, WEIGHT, cut_normal(0.02, 2.0)),
    (TRUNCATED, RESIDUAL, cut_normal(0.02, 2.0)),
    (TRUNCATED_BY_ROLE, WEIGHT, cut_normal(0.05, 3.0)),
    (TRUNCATED_BY_ROLE, RESIDUAL, cut_normal(0.01, 3.0)),
    (TRUNCATED_BY_ROLE, EMBEDDING, cut_normal(0.3, 3.0)),
    (SCALED, WEIGHT, stats.norm(scale=0.02)),
    (SCALED, RESIDUAL, stats.norm(scale=0.02 / 24**0.5)),
    (SCALED, EMBEDDING, stats.norm(scale=0.02)),
    (SCALED_MORE, RESIDUAL, stats.norm(scale=0.05 / 18**0.5)),
    (SCALED_MORE, EMBEDDING, stats.norm(scale=0.3)),
    (TORCH, WEIGHT, uniform(400**-0.5)),
    (TORCH, linear(N_IN, 20_000).find("bias"), uniform(400**-0.5)),
    (TORCH, EMBEDDING, stats.norm(scale=1.0)),
]


@pytest.mark.parametrize(
    ("init", "tensor", "expected"),
    CASES,
    ids=[f"{init.kind}-{tensor.role}-{n}" for n, (init, tensor, _) in enumerate(CASES)],
)
def test_values_are_distributed_as_stated(init: Init, tensor: Tensor, expected: Any) -> None:
    values = drawn(init, tensor).flatten().double().numpy()
    size = len(values)
    assert abs(values.mean()) < 5 * expected.std() / size**0.5
    # The deviation of a sample deviates by at most std / sqrt(2 size) for these distributions;
    # the stream's normal lacks the farthest tails, which reduces it by 1e-4.
    assert values.std() == pytest.approx(expected.std(), rel=5 / (2 * size) ** 0.5 + 2e-4)
    assert stats.kstest(values, expected.cdf).pvalue > 1e-3
    low, high = expected.support()
    assert low * (1 + 1e-6) <= values.min()
    assert values.max() <= high * (1 + 1e-6)


@pytest.mark.parametrize(
    ("init", "theirs"),
    [
        (XAVIER, nn.init.xavier_uniform_),
        (
            XavierInit(kind="xavier", draw="normal", gain=2.0),
            lambda t: nn.init.xavier_normal_(t, gain=2.0),
        ),
        (KAIMING, nn.init.kaiming_normal_),
        (
            KaimingInit(kind="kaiming", fan="out", draw="uniform"),
            lambda t: nn.init.kaiming_uniform_(t, mode="fan_out"),
        ),
        (TRUNCATED, lambda t: nn.init.trunc_normal_(t, std=0.02, a=-0.04, b=0.04)),
    ],
    ids=["xavier", "xavier normal", "kaiming", "kaiming uniform out", "truncated"],
)
def test_values_are_distributed_as_those_of_torch(
    init: Init, theirs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    ours, reference = drawn(init, WEIGHT), theirs(torch.empty(N_OUT, N_IN))
    assert ours.std().item() == pytest.approx(reference.std().item(), rel=0.01)
    assert ours.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.15)
    assert stats.ks_2samp(ours.flatten(), reference.flatten()).pvalue > 1e-3


def test_torch_init_is_that_of_torch_modules() -> None:
    torch.manual_seed(0)
    for tensor, reference in (
        (WEIGHT, nn.Linear(N_IN, N_OUT).weight),
        (linear(N_IN, 20_000).find("bias"), nn.Linear(N_IN, 20_000).bias),
        (EMBEDDING, nn.Embedding(900, N_IN).weight),
    ):
        both = drawn(TORCH, tensor).flatten(), reference.detach().flatten()
        assert both[0].std().item() == pytest.approx(both[1].std().item(), rel=0.02)
        assert stats.ks_2samp(*both).pvalue > 1e-3


@pytest.mark.parametrize(
    "init",
    [XAVIER_NORMAL, KAIMING, NORMAL_BY_ROLE, TRUNCATED, SCALED, TORCH],
    ids=lambda init: init.kind,
)
def test_constants_keep_their_value_and_biases_start_at_zero(init: Init) -> None:
    assert drawn(init, Tensor((3,), "constant", value=0.75)).tolist() == [0.75] * 3
    norm_bias = Tensor((N_OUT,), "bias")
    assert init.start_of(norm_bias) == Constant(0.0)
    if init is not TORCH:
        assert init.start_of(BIAS) == Constant(0.0)


GPT = {
    "format": 1,
    "name": "tiny",
    "builder": "decoder",
    "vocab": 300,
    "max_length": 64,
    "n_layers": 3,
    "d_model": 128,
    "n_heads": 4,
    "d_ff": 256,
    "position": "learned",
}


def deviations(spec: dict[str, Any]) -> dict[str, float]:
    return {name: tensor.std().item() for name, tensor in zoo.build(spec).state_dict().items()}


def test_a_model_scaled_by_depth_is_that_of_gpt_2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = GPT | {"init": {"kind": "depth_scaled"}, "head": {"kind": "linear", "tied": True}}
    ours = deviations(spec)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_positions=64, n_embd=128, n_layer=3, n_head=4, n_inner=256
    )
    state = GPT2LMHeadModel(config).state_dict()
    theirs = {name: tensor.std().item() for name, tensor in state.items()}
    for layer in range(3):
        block, reference = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        for mine, name in {
            "self_attn.q_proj": "attn.c_attn",
            "self_attn.o_proj": "attn.c_proj",
            "ffn.up_proj": "mlp.c_fc",
            "ffn.down_proj": "mlp.c_proj",
        }.items():
            expected = theirs[f"{reference}.{name}.weight"]
            assert ours[f"{block}.{mine}.weight"] == pytest.approx(expected, rel=0.03), mine
            assert ours[f"{block}.{mine}.bias"] == 0.0
    assert ours["decoder.layers.0.ffn.down_proj.weight"] == pytest.approx(0.02 / 6**0.5, rel=0.03)
    for mine, name in {"tokens": "wte", "positions": "wpe"}.items():
        expected = theirs[f"transformer.{name}.weight"]
        assert ours[f"decoder.embed.{mine}.weight"] == pytest.approx(expected, rel=0.03)


BY_PLACE = """
from zoo.distribution import Constant
from zoo.slots import Init


class ByPlace(Init):
    def distribution(self, tensor):
        at = -1 if tensor.layer is None else 100 * tensor.layer
        return Constant(at + (tensor.n_layers or 0) + ("up_proj" in tensor.name) / 2)
"""
"""An init of constants that tell what it is told."""


PLACES: dict[str, Any] = {
    "format": 1,
    "name": "m",
    "builder": "encoder_decoder",
    "source_vocab": 5,
    "target_vocab": 5,
    "d_model": 4,
    "n_heads": 2,
    "d_ff": 6,
    "encoder": {"n_layers": 2},
    "decoder": {"n_layers": 3, "layers": [{"at": [1], "d_ff": 8}]},
}


def placed(**values: Any) -> dict[str, Placed]:
    layout = zoo.read_spec({**PLACES, **values}).layout
    found = {tensor.name: tensor for tensor in layout.placed()}
    assert list(found) == [name for name, _ in layout.tensors()]
    for name, tensor in layout.tensors():
        own = {field.name: getattr(found[name], field.name) for field in fields(Tensor)}
        assert Tensor(**own) == tensor
    return found


def test_an_init_knows_the_layer_and_the_name_of_a_tensor() -> None:
    """The layers of each stack are counted alone, also those that a rule changes; those that share
    weights are counted each time."""
    for name, tensor in placed().items():
        layer = re.match(r"(encoder|decoder)\.layers\.(\d+)\.", name)
        if layer is None:
            assert (tensor.layer, tensor.n_layers) == (None, None)
        else:
            assert tensor.layer == int(layer[2])
            assert tensor.n_layers == {"encoder": 2, "decoder": 3}[layer[1]]
    shared = placed(encoder={"n_layers": 4, "share_layers": [0, 1, 1, 0]})
    name = "encoder.layers.1.ffn.up_proj.weight"
    assert (shared[name].layer, shared[name].n_layers) == (1, 4)
    assert "encoder.layers.2.ffn.up_proj.weight" not in shared
    albert = placed(encoder={"n_layers": 4, "share_layers": True})
    name = "encoder.layers.0.ffn.up_proj.weight"
    assert (albert[name].layer, albert[name].n_layers) == (0, 4)


def test_layers_inside_layers_are_those_of_the_stack() -> None:
    inner = Layout({"units": LayerList(((range(2), linear(2, 3)),))})
    layout = Layout({"layers": LayerList((([0, 2], inner), ([1], linear(2, 3))))})
    found = {(t.name, t.layer, t.n_layers) for t in layout.placed() if t.name.endswith("weight")}
    assert found == {
        *((f"layers.{at}.units.{unit}.weight", at, 3) for at in (0, 2) for unit in (0, 1)),
        ("layers.1.weight", 1, 3),
    }


def test_a_model_starts_as_its_init_says_of_each_place(tmp_path: Path) -> None:
    (tmp_path / "by_place.py").write_text(BY_PLACE)
    registry = tmp_path / "registry.toml"
    registry.write_text('format = 1\n[init]\nby_place = "by_place.py:ByPlace"\n')
    spec = {**PLACES, "share_embeddings": True, "init": "by_place"}
    model = zoo.build(spec, registry=load_registry(registry))
    starts = {name: t.unique().tolist() for name, t in model.named_parameters()}
    assert starts["encoder.layers.1.ffn.up_proj.weight"] == [102.5]
    assert starts["decoder.layers.2.ffn.down_proj.bias"] == [203.0]
    assert starts["encoder.embed.tokens.weight"] == [-1.0]
    assert starts["decoder.layers.2.ffn.pre_norm.weight"] == [1.0]  # a constant of the layout


def test_each_expert_starts_as_if_it_were_alone() -> None:
    moe = {"kind": "moe", "n_experts": 16, "top_k": 2, "shared_d_ff": 256}
    ours = deviations(GPT | {"n_layers": 1, "ffn": moe, "init": "xavier"})
    alone = (2 / (128 + 256)) ** 0.5
    for where in ("experts", "shared"):
        for name in ("gate_proj", "up_proj", "down_proj"):
            found = ours[f"decoder.layers.0.ffn.{where}.{name}.weight"]
            assert found == pytest.approx(alone, rel=0.02)
    router = ours["decoder.layers.0.ffn.router.weight"]
    assert router == pytest.approx((2 / (128 + 16)) ** 0.5, rel=0.06)


def test_learned_activations_and_norms_start_at_their_constants() -> None:
    spec = GPT | {
        "n_layers": 1,
        "norm": {"kind": "rms_norm", "zero_centered_weight": True},
        "ffn": {"kind": "mlp", "activation": "prelu", "slope": 0.1, "sub_norm": "scale_norm"},
    }
    state = zoo.build(spec).state_dict()
    ffn = "decoder.layers.0.ffn"
    assert state[f"{ffn}.activation.weight"].tolist() == pytest.approx([0.1])
    assert state[f"{ffn}.sub_norm.weight"].tolist() == [16.0]
    assert state[f"{ffn}.pre_norm.weight"].abs().max() == 0.0
    xielu = zoo.build(GPT | {"n_layers": 1, "ffn": {"kind": "mlp", "activation": "xielu"}})
    start = {name: t.item() for name, t in xielu.state_dict().items() if "activation" in name}
    names = ("alpha_p", "alpha_n", "beta", "eps")
    expected = (math.log(math.e**0.8 - 1), math.log(math.e**0.3 - 1), 0.5, -1e-6)
    assert start == pytest.approx(
        {f"{ffn}.activation.{name}": value for name, value in zip(names, expected, strict=True)}
    )


def test_depth_needs_the_number_of_layers() -> None:
    inside = {k: v for k, v in GPT.items() if k != "n_layers"} | {"decoder": {"n_layers": 2}}
    with pytest.raises(zoo.SpecError, match="`n_layers` is missing"):
        zoo.read_spec(inside | {"init": "depth_scaled"})
    zoo.read_spec(inside | {"init": {"kind": "depth_scaled", "n_layers": 2}})
    # No other init depends on the depth of the stack.
    assert "n_layers" not in zoo.read_spec(GPT | {"init": "normal"}).to_dict()["init"]


def test_unstated_deviations_follow_the_stated_one() -> None:
    stated = {"std": 0.05, "residual_std": 0.05, "embedding_std": 0.05}
    assert NormalInit(kind="normal", std=0.05).dump() == {"kind": "normal", **stated}
    assert SCALED.embedding_std == 0.02
    assert "embedding_std" not in XAVIER.dump()


@pytest.mark.parametrize("value", [0.0, -0.1, 1e7, 1e300, float("nan")])
@pytest.mark.parametrize(
    ("cls", "key"),
    [
        (XavierInit, "gain"),
        (XavierInit, "embedding_std"),
        (KaimingInit, "gain"),
        (KaimingInit, "embedding_std"),
        (NormalInit, "std"),
        (NormalInit, "residual_std"),
        (TruncatedNormalInit, "embedding_std"),
        (DepthScaledInit, "std"),
    ],
)
def test_deviations_are_positive_and_of_a_size_that_floats_hold(
    cls: type[Init], key: str, value: float
) -> None:
    more = {"n_layers": 2} if cls is DepthScaledInit else {}
    with pytest.raises(ValidationError, match=rf"{key}\n  Input should be (greater|less|a finite)"):
        cls(kind="x", **more, **{key: value})
