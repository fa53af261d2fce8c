"""`time_mixing` and `channel_mixing` against the recurrences of their paper (Peng et al. 2023,
arXiv:2305.13048), and their states in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention_cases import SMALL_DECODER, made, randn
from references.recurrences import check_hidden_token, check_recurrence, check_shown

import zoo
from zoo.errors import SpecError
from zoo_components.modules import decay as module_of
from zoo_components.norm import NoNorm
from zoo_components.rwkv import ChannelMixing, TimeMixing

WIDTH = 6
SPEC = {key: value for key, value in SMALL_DECODER.items() if key != "n_heads"} | {
    "position": "none",
    "attention": {"kind": "time_mixing", "d_inner": 24},
}


def described(**fields: Any) -> TimeMixing:
    norm = NoNorm(kind="none", width=WIDTH)
    return TimeMixing(kind="time_mixing", norm=norm, d_model=WIDTH, **{"d_inner": 8} | fields)


def described_channels(**fields: Any) -> ChannelMixing:
    norm = NoNorm(kind="none", width=WIDTH)
    return ChannelMixing(kind="channel_mixing", norm=norm, d_model=WIDTH, d_ff=10, **fields)


def shifted(t: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """mix * x_t + (1 - mix) * x_(t-1), through the map of this name."""
    earlier = torch.cat([torch.zeros(1, x.shape[-1]).double(), x[:-1]])
    mix = t[f"{name}_mix"]
    return (mix * x + (1 - mix) * earlier) @ t[f"{name}_proj.weight"].T


def time_mixed(_: TimeMixing, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The sums over all earlier tokens anew for each token, for one sequence."""
    k, v, gate = (shifted(t, name, x) for name in ("k", "v", "gate"))
    w = torch.exp(t["log_rate"])
    read = []
    for i in range(len(x)):
        own = torch.exp(t["bonus"] + k[i])
        a, b = own * v[i], own
        for j in range(i):
            weight = torch.exp(k[j] - (i - 1 - j) * w)
            a, b = a + weight * v[j], b + weight
        read.append(a / b)
    return (torch.sigmoid(gate) * torch.stack(read)) @ t["o_proj.weight"].T


def channels_mixed(_: ChannelMixing, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    units = shifted(t, "up", x).clamp(min=0) ** 2
    return torch.sigmoid(shifted(t, "gate", x)) * (units @ t["down_proj.weight"].T)


@pytest.mark.parametrize("length", [1, 2, 5, 37])
@pytest.mark.parametrize("fields", [{}, {"d_inner": 5}])
def test_time_mixing(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), time_mixed, length)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_channel_mixing(length: int) -> None:
    check_recurrence(described_channels(), channels_mixed, length)


@pytest.mark.parametrize("graph", [False, True])
def test_gradients_of_all_tensors_are_those_of_the_recurrence(
    graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of, "in_graph", lambda: graph)
    module, x = made(described()), randn(1, 13, WIDTH).requires_grad_()
    tensors = dict(module.named_parameters())
    direction = randn(13, WIDTH, seed=3)
    outputs = (module(x)[0][0], time_mixed(described(), tensors, x[0]))
    found, expected = (
        torch.autograd.grad((one * direction).sum(), [x, *tensors.values()]) for one in outputs
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_keys_whose_exponentials_overflow_or_vanish(size: float) -> None:
    """In float32, with keys around this size, also beside hidden tokens: as with keys around 0,
    since all weights have a common factor."""
    module = made(described(d_inner=1), torch.float32)
    module.k_mix.data.fill_(1.0)
    module.k_proj.weight.data.copy_(torch.eye(1, WIDTH))
    module.v_proj.weight.data[:, 0] = 0  # keys are the first channel, and nothing else is
    module.gate_proj.weight.data[:, 0] = 0
    x = randn(2, 9, WIDTH).float()
    large = x.clone()
    large[..., 0] += size
    large.requires_grad_()
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., :3] = False
    found, expected = module(large, mask=mask)[0], module(x, mask=mask)[0]
    seen = mask[:, 0, 0]
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-3, atol=1e-4)
    found[seen].sum().backward()
    assert large.grad is not None
    assert large.grad.isfinite().all()


def test_a_token_after_one_with_a_far_larger_key() -> None:
    """In float32, where the quotient of the two weights overflows: the value is that of the
    other."""
    module = made(described(d_inner=1), torch.float32)
    with torch.no_grad():
        for name in ("k", "v", "gate"):
            getattr(module, f"{name}_mix").fill_(1.0)
            getattr(module, f"{name}_proj").weight.zero_()
        module.k_proj.weight[0, 0] = module.v_proj.weight[0, 1] = 1.0
        module.o_proj.weight.fill_(2.0)
    x = torch.zeros(1, 3, WIDTH)
    x[0, :, :2] = torch.tensor([[200.0, 3.0], [0.0, 5.0], [-200.0, 7.0]])
    torch.testing.assert_close(module(x)[0], torch.full((1, 3, WIDTH), 3.0))


@pytest.mark.parametrize("describe", [described, described_channels])
def test_before_the_first_token_that_is_seen_there_is_a_zero(describe: Any) -> None:
    module, x = made(describe()), randn(2, 6, WIDTH)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]]).bool()
    found, _ = module(x, mask=mask[:, None, None])
    for row in range(2):
        alone, _ = module(x[row : row + 1, mask[row]])
        torch.testing.assert_close(found[row, mask[row]], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("describe", [described, described_channels])
def test_a_hidden_token_changes_nothing(describe: Any) -> None:
    """But for the token shift, to which it is a zero."""
    module = made(describe())
    for name, tensor in module.named_parameters():
        if name.endswith("_mix"):
            tensor.data.fill_(1.0)
    check_hidden_token(module, WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    maps = 4 * 16 * 24
    check_shown(SPEC, own=maps + 3 * 16 + 2 * 24, state=16 + 3 * 24, products=maps)


def layer(**block: Any) -> dict[str, Any]:
    return SPEC | {"ffn": "none", "block": {"kind": "two_mixers", **block}}


def test_the_size_of_the_smallest_published_model() -> None:
    """That of RWKV-4 with 169 million parameters, in closed form."""
    vocab, d, n = 50277, 768, 12
    sizes = {"vocab": vocab, "d_model": d, "n_layers": n, "d_ff": 4 * d}
    norms = {"attention": "time_mixing", "embedding": {"kind": "tokens", "norm": "layer_norm"}}
    spec = zoo.read_spec(layer() | sizes | norms)
    assert spec.n_parameters == 2 * vocab * d + 13 * d**2 * n + d * (11 * n + 4) == 169_342_464


def test_a_layer_of_two_mixers_is_two_residual_branches() -> None:
    model = zoo.build(layer() | {"n_layers": 1}).double().eval()
    (block,) = model.decoder.layers
    x = model.decoder.embed(torch.tensor([[3, 1, 4, 1, 5]]), torch.arange(5))
    for name in ("self_attn", "second_mixer"):
        branch = getattr(block, name)
        x = x + branch(branch.pre_norm(x))[0]
    expected = model.head(model.decoder.norm(x))
    torch.testing.assert_close(model(torch.tensor([[3, 1, 4, 1, 5]])), expected)


def test_a_layer_without_a_second_mixer() -> None:
    with pytest.raises(SpecError, match="without a second mixer the layer is the block `residual`"):
        zoo.read_spec(layer(second_mixer="none"))


@pytest.mark.parametrize(
    "second",
    [
        {"kind": "multi_head", "n_heads": 4},
        {"kind": "gmlp", "max_length": 9},
        {"kind": "fourier"},
    ],
    ids=lambda second: second["kind"],
)
def test_second_mixers_that_do_not_fit(second: dict[str, Any]) -> None:
    message = f"`{second['kind']}` cannot be the second mixer, which knows neither positions nor"
    with pytest.raises(SpecError, match=message):
        zoo.read_spec(layer(second_mixer=second) | {"ffn": "mlp"})


def test_two_mixers_run_one_after_the_other() -> None:
    with pytest.raises(SpecError, match="the branches of a layer with two mixers run one after"):
        zoo.read_spec(layer() | {"norm_placement": "parallel"})


def test_generation_is_told_of_a_second_mixer_that_needs_all_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ChannelMixing, "incremental", False)
    monkeypatch.setattr(ChannelMixing, "recordable", False)
    found = zoo.read_spec(layer()).model.generation
    told = ("attention `channel_mixing`",)
    assert (found.not_incremental, found.not_recordable) == (told, told)


def test_a_recurrence_as_the_second_mixer_of_an_encoder() -> None:
    attending = {"builder": "encoder", "n_heads": 4, "attention": "multi_head"}
    with pytest.raises(SpecError, match="no token sees later ones in these layers"):
        zoo.read_spec(layer() | attending)
