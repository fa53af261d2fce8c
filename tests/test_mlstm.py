"""`mlstm` against the recurrence of the paper (Beck et al. 2024, arXiv:2405.04517, section 2.3),
and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention_cases import SMALL_DECODER, chunks_of, made, randn
from references.recurrences import check_hidden_token, check_recurrence, check_shown

import zoo
from zoo.errors import SpecError
from zoo_components.mlstm import Mlstm
from zoo_components.modules import decay as module_of
from zoo_components.norm import NoNorm

WIDTH = 6
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "mlstm", "head_dim": 3, "v_head_dim": 5},
}
chunk = chunks_of(module_of)


def described(**fields: Any) -> Mlstm:
    stated = {"n_heads": 4, "head_dim": 3, "v_head_dim": 5, "divisor_eps": 1e-2} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return Mlstm(kind="mlstm", norm=norm, d_model=WIDTH, eps=1e-3, **stated)


def recurrent(a: Mlstm, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width), without a scale of the memory: m is only
    what `divisor_eps` is multiplied with."""
    q, k, v, gate = (x @ t[f"{name}_proj.weight"].T for name in ("q", "k", "v", "gate"))
    gates = [x @ t[f"{name}.weight"].T + t[f"{name}.bias"] for name in ("in_gate", "forget_gate")]
    if a.gate_softcap != "none":
        gates = [a.gate_softcap * torch.tanh(one / a.gate_softcap) for one in gates]
    log_in, forget = gates[0], 1 / (1 + torch.exp(-gates[1]))
    heads = []
    for h in range(a.n_heads):
        at = slice(h * a.head_dim, (h + 1) * a.head_dim)
        at_v = slice(h * a.v_head_dim, (h + 1) * a.v_head_dim)
        c = torch.zeros(a.v_head_dim, a.head_dim).double()
        n = torch.zeros(a.head_dim).double()
        m = torch.zeros(()).double()
        read = []
        for i in range(len(x)):
            f, entering = forget[i, h], torch.exp(log_in[i, h])
            c = f * c + entering * torch.outer(v[i, at_v], k[i, at])
            n = f * n + entering * k[i, at]
            m = torch.maximum(torch.log(f) + m, log_in[i, h])
            query = q[i, at] / a.head_dim**0.5
            divisor = torch.clamp((n @ query).abs(), min=1.0) + a.divisor_eps * torch.exp(m)
            o = c @ query / divisor
            centred = o - o.mean()
            read.append(centred / (centred.square().mean() + a.eps).sqrt())
        heads.append(torch.stack(read))
    normed = torch.cat(heads, -1) * t["inner_norm.weight"]
    return (normed * torch.sigmoid(gate)) @ t["o_proj.weight"].T


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize(
    "fields",
    [
        {"gate_softcap": 2.0},
        {"gate_softcap": "none", "n_heads": 3, "head_dim": 5, "v_head_dim": 2},
        {"divisor_eps": 1e-6},
    ],
)
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


def test_gradients_of_all_tensors_are_those_of_the_recurrence() -> None:
    module, x = made(described()), randn(1, 70, WIDTH).requires_grad_()
    tensors = dict(module.named_parameters())
    direction = randn(70, WIDTH, seed=3)
    outputs = (module(x)[0][0], recurrent(described(), tensors, x[0]))
    found, expected = (
        torch.autograd.grad((one * direction).sum(), [x, *tensors.values()]) for one in outputs
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [1, 3, 8, 13])
def test_maxima_by_doubling_and_by_pairs(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are the recurrence, and their gradients are those of finite differences."""
    added, log_decay = randn(2, length), -randn(2, length, seed=4).exp()
    before = torch.tensor([5.0, -torch.inf]).double()
    m, expected = before, []
    for i in range(length):
        m = torch.maximum(m + log_decay[:, i], added[:, i])
        expected.append(m)
    given = [t.requires_grad_() for t in (added, log_decay)]
    for graph in (False, True):
        monkeypatch.setattr(module_of, "in_graph", lambda graph=graph: graph)
        found = module_of.fading_maxima(added, log_decay, before)
        torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=1e-12)
        assert torch.autograd.gradcheck(lambda a, b: module_of.fading_maxima(a, b, before), given)


def test_gates_without_a_bound_do_not_overflow() -> None:
    """exp of the input gate would be infinite in float32."""
    module = made(described(gate_softcap="none"), torch.float32)
    with torch.no_grad():
        module.in_gate.bias.fill_(200.0)
    x = randn(1, 5, WIDTH).float().requires_grad_()
    found, _ = module(x)
    found.sum().backward()
    assert x.grad is not None
    assert found.isfinite().all()
    assert x.grad.isfinite().all()
    assert x.grad.any()


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described()), WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    keys, values = 4 * 3, 4 * 5
    maps = 16 * (2 * keys + 2 * values + 2 * 4) + 16 * values
    sums = 4 * (64 * (3 + 6) + 2 * 3 * 6)  # of one token: its pairs, and the state
    check_shown(SPEC, own=maps + 2 * 4 + values, state=4 * (3 * 6 + 1), products=maps + sums)


def test_a_model_starts_with_nearly_closed_gates() -> None:
    """As xLSTM-7B: little enters, and little is forgotten."""
    mixer = zoo.build(SPEC).get_submodule("decoder.layers.0.self_attn")
    biases = [mixer.get_parameter(f"{name}.bias") for name in ("in_gate", "forget_gate")]
    torch.testing.assert_close(torch.stack(biases)[:, 0], torch.tensor([-10.0, 4.5]))


def test_values_are_as_wide_as_keys_unless_stated() -> None:
    spec = zoo.read_spec({**SPEC, "attention": "mlstm"})
    assert spec.tensors["decoder.layers.0.self_attn.v_proj.weight"].shape == (16, 16)


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(SpecError, match="d_model = 16 is not divisible by n_heads = 3"):
        zoo.read_spec({**SPEC, "n_heads": 3, "attention": "mlstm"})
