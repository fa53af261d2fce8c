"""`gated_delta` against the recurrence of its paper (Yang et al. 2024, arXiv:2412.06464, equation
10), and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.attention_cases import SMALL_DECODER, chunks_of, made, randn, rms
from references.recurrences import (
    check_first_gradient,
    check_hidden_token,
    check_recurrence,
    check_shown,
)

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo_components.gated_delta import GatedDelta
from zoo_components.modules import delta_rule as module_of
from zoo_components.norm import NoNorm

WIDTH, KEY, VALUE = 6, 4, 3
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "gated_delta", "n_key_heads": 2, "head_dim": 3, "v_head_dim": 5},
}
chunk = chunks_of(module_of)


def described(**fields: Any) -> GatedDelta:
    stated = {"n_heads": 4, "n_key_heads": 2, "head_dim": KEY, "v_head_dim": VALUE} | fields
    norm, head_norm = NoNorm(kind="none", width=WIDTH), rms(stated["v_head_dim"])
    return GatedDelta(kind="gated_delta", norm=norm, d_model=WIDTH, head_norm=head_norm, **stated)


def recurrent(a: GatedDelta, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width), in the paper's notation: S is (value,
    key)."""

    def convolved(name: str) -> torch.Tensor:
        mapped, weight = x @ t[f"{name}_proj.weight"].T, t[f"{name}_conv.weight"]
        padded = F.pad(mapped.T, (weight.shape[-1] - 1, 0))
        return F.silu(F.conv1d(padded[None], weight, groups=len(weight))[0].T)

    q, k, v = (convolved(name) for name in "qkv")
    alpha = torch.exp(
        -t["log_rate"].exp() * F.softplus(x @ t["decay_proj.weight"].T + t["rate_bias"])
    )
    beta = (a.max_strength or 1) * torch.sigmoid(x @ t["beta_proj.weight"].T)
    gate = F.silu(x @ t["gate_proj.weight"].T)
    heads = []
    for h in range(a.n_heads):
        key_head = h // (a.n_heads // a.n_key_heads)
        s = torch.zeros(a.v_head_dim, a.head_dim).double()
        read = []
        for i in range(len(x)):
            at = slice(key_head * a.head_dim, (key_head + 1) * a.head_dim)
            qi, ki = (p[i, at] / (p[i, at] @ p[i, at] + 1e-6).sqrt() for p in (q, k))
            vi = v[i, h * a.v_head_dim : (h + 1) * a.v_head_dim]
            keep = torch.eye(a.head_dim).double() - beta[i, h] * torch.outer(ki, ki)
            s = alpha[i, h] * s @ keep + beta[i, h] * torch.outer(vi, ki)
            read.append(s @ qi / a.head_dim**0.5)
        o = torch.stack(read)
        heads.append(o / (o.square().mean(-1, keepdim=True) + 1e-3).sqrt() * t["head_norm.weight"])
    return (torch.cat(heads, -1) * gate) @ t["o_proj.weight"].T


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_key_heads": 4},
        {"n_key_heads": 1, "kernel_size": 1},
        {"v_head_dim": 7},
        {"max_strength": 2.0},
    ],
)
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


def test_a_strength_of_2_turns_a_value_around() -> None:
    """With no decay, the same key again with the value 0 negates what it is mapped to."""
    k, v = torch.eye(1, 3).double().expand(1, 2, 3), torch.tensor([[[4.0], [0.0]]]).double()
    strength = torch.tensor([[1.0, 2.0]]).double()
    read, _ = module_of.gated_delta_rule(k, k, v, torch.zeros(1, 2, 1).double(), strength, None)
    torch.testing.assert_close(read, torch.tensor([[[4.0], [-4.0]]]).double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "head_norm",
    [
        "layer_norm",
        {"kind": "layer_norm", "weight": False},
        {"kind": "layer_norm", "bias": False},
        "rms_norm",
        "batch_norm",
    ],
)
def test_low_precision_with_any_head_norm(
    head_norm: str | dict[str, Any], dtype: torch.dtype
) -> None:
    """The norm gets what heads read in float32, and has parameters of the model's dtype."""
    spec = SPEC | {"attention": SPEC["attention"] | {"head_norm": head_norm}}
    low = zoo.build(spec, dtype=dtype).eval()
    exact = zoo.build(spec, dtype=torch.float64).eval()
    exact.load_state_dict(low.state_dict())
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(low(ids).double(), exact(ids), rtol=0.05, atol=0.05)


def test_the_same_token_over_and_over_is_stable() -> None:
    """Where keys repeat, an inverse by powers of the system would lose all digits."""
    length = 300
    k = torch.ones(1, length, 8) / 8**0.5
    v = randn(1, length, 4).float()
    strength, decay = torch.full((1, length), 0.999), torch.full((1, length, 1), -1e-4)
    read, state = module_of.gated_delta_rule(k, k, v, decay, strength, None)
    wide = [t.double() for t in (k, k, v, decay, strength)]
    expected, state_64 = module_of.gated_delta_rule(*wide, None)  # type: ignore[call-arg, arg-type]
    torch.testing.assert_close(read.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(state.double(), state_64, rtol=0, atol=1e-5)
    torch.testing.assert_close(read, v, rtol=0, atol=1e-2)  # each value replaces the last


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described(kernel_size=1)), WIDTH)


def test_gradients_reach_the_first_token() -> None:
    module = made(described(n_heads=2, n_key_heads=1))
    module.log_rate.data.fill_(-5.0)  # or else nothing is left of it
    check_first_gradient(module, WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    keys, values = 2 * 3, 4 * 5
    state = 4 * 3 * 5 + 3 * (2 * keys + values)
    maps = 16 * (2 * keys + 2 * values + 2 * 4) + values * 16
    own = maps + 4 * (2 * keys + values) + 2 * 4 + 5
    pairs = 2 * 2 * 64 * 3 + 4 * 64 * (2 * 5 + 3)  # of keys with keys and queries, then with values
    check_shown(SPEC, own=own, state=state, products=maps + pairs + 3 * 4 * 3 * 5)


def test_a_model_starts_with_slow_decays() -> None:
    """A token that is all zeros fades to exp(-0.05)."""
    model = zoo.build(SPEC)
    tensors = dict(model.get_submodule("decoder.layers.0.self_attn").named_parameters())
    rate = tensors["log_rate"].exp() * F.softplus(tensors["rate_bias"])
    torch.testing.assert_close(rate, torch.full((4,), 0.05))


def test_heads_that_do_not_fit() -> None:
    attention = SPEC["attention"] | {"n_key_heads": 3}
    with pytest.raises(SpecError, match="n_heads = 4 is not divisible by n_key_heads = 3"):
        zoo.read_spec({**SPEC, "attention": attention})


@pytest.mark.parametrize(
    "kind", ["gated_delta", "kimi_delta", "mamba2", "lightning", "mlstm", "linear"]
)
def test_no_tokens_are_a_sequence_too(kind: str) -> None:
    """As for other attentions; they leave the state as it was."""
    model = zoo.build({**SPEC, "attention": kind}).double().eval()
    ids, cache = torch.tensor([[3, 1, 4]]), Cache(3)
    assert model(ids[:, :0]).shape == (1, 0, 11)
    parts = [model.decode(part, cache=cache) for part in ids.split([2, 0, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model.decode(ids), rtol=0, atol=1e-12)
