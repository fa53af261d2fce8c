"""`kimi_delta` against the recurrence of its paper (Kimi Team 2025, arXiv:2510.26692, section 3),
and its state in the cache."""

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
from zoo_components.kimi_delta import KimiDelta
from zoo_components.modules import delta_rule as rule
from zoo_components.norm import NoNorm

WIDTH, HEAD = 6, 4
SPEC = SMALL_DECODER | {"position": "none", "attention": {"kind": "kimi_delta", "head_dim": 3}}
chunk = chunks_of(rule)


def described(**fields: Any) -> KimiDelta:
    stated = {"n_heads": 3, "head_dim": HEAD} | fields
    norm, head_norm = NoNorm(kind="none", width=WIDTH), rms(stated["head_dim"])
    return KimiDelta(kind="kimi_delta", norm=norm, d_model=WIDTH, head_norm=head_norm, **stated)


def recurrent(a: KimiDelta, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width), in the paper's notation: S is (key,
    value)."""

    def mapped(*names: str) -> torch.Tensor:
        y = x
        for name in names:
            y = y @ t[f"{name}_proj.weight"].T
        return y

    def convolved(name: str) -> torch.Tensor:
        weight = t[f"{name}_conv.weight"]
        padded = F.pad(mapped(name).T, (weight.shape[-1] - 1, 0))
        return F.silu(F.conv1d(padded[None], weight, groups=len(weight))[0].T)

    q, k, v = (convolved(name).unflatten(-1, (a.n_heads, -1)) for name in "qkv")
    step = F.softplus(mapped("decay_a", "decay_b") + t["rate_bias"]).unflatten(-1, (a.n_heads, -1))
    alpha = torch.exp(-t["log_rate"].exp()[:, None] * step)
    beta = torch.sigmoid(mapped("beta"))
    gate = torch.sigmoid(mapped("gate_a", "gate_b"))
    heads = []
    for h in range(a.n_heads):
        s, read = torch.zeros(a.head_dim, a.head_dim).double(), []
        for i in range(len(x)):
            qi, ki = (p[i, h] / (p[i, h] @ p[i, h] + 1e-6).sqrt() for p in (q, k))
            replaced = torch.eye(a.head_dim).double() - beta[i, h] * torch.outer(ki, ki)
            s = replaced @ torch.diag(alpha[i, h]) @ s + beta[i, h] * torch.outer(ki, v[i, h])
            read.append(s.T @ qi / a.head_dim**0.5)
        o = torch.stack(read)
        heads.append(o / (o.square().mean(-1, keepdim=True) + 1e-3).sqrt() * t["head_norm.weight"])
    return (torch.cat(heads, -1) * gate) @ t["o_proj.weight"].T


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize("fields", [{}, {"n_heads": 1, "kernel_size": 1}, {"head_dim": 1}])
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 12, 64])
def test_products_that_fade_channel_by_channel(
    length: int, in_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each pair of tokens by its definition, also as recorded for all lengths."""
    monkeypatch.setattr(rule, "in_graph", lambda: in_graph)
    a, b, decay = randn(2, 3, length, 4), randn(3, length, 4, seed=2), randn(3, length, 4, seed=3)
    log_decay = -decay.exp()
    expected = torch.zeros(2, 3, length, length).double()
    for i in range(length):
        for j in range(i + 1):
            faded = b[:, j] * log_decay[:, j + 1 : i + 1].sum(1).exp()
            expected[..., i, j] = (a[..., i, :] * faded).sum(-1)
    found = rule.faded_products(a, b, log_decay.cumsum(-2))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [64, 37])
def test_channels_that_fade_at_once_beside_others_that_stay(length: int) -> None:
    """Within a chunk one fades by exp(-3600), whose reciprocal no float has, the other does not."""
    k, v = F.normalize(randn(1, length, 2), dim=-1).float(), randn(1, length, 3, seed=2).float()
    log_decay = torch.tensor([-100.0, 0.0]).repeat(1, length, 1).requires_grad_()
    strength = torch.full((1, length), 0.5)
    found = rule.gated_delta_rule(k, k, v, log_decay, strength, None)
    found[0].sum().backward()
    assert log_decay.grad is not None
    assert log_decay.grad.isfinite().all()
    wide = [t.detach().double()[0] for t in (k, v, log_decay.exp())]
    s, read = torch.zeros(2, 3).double(), []
    for ki, vi, faded in zip(*wide, strict=True):
        s = faded[:, None] * s
        s = s + 0.5 * torch.outer(ki, vi - ki @ s)
        read.append(ki @ s)
    for ours, expected in zip(found, (torch.stack(read), s), strict=True):
        torch.testing.assert_close(ours[0].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described(kernel_size=1)), WIDTH)


def test_gradients_reach_the_first_token() -> None:
    module = made(described(n_heads=2))
    module.log_rate.data.fill_(-5.0)  # or else nothing is left of it
    check_first_gradient(module, WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    width = 4 * 3
    state = 4 * 3 * 3 + 3 * 3 * width
    maps = 16 * (3 * width + 2 * 3 + 4) + 2 * 3 * width + width * 16
    own = maps + 4 * 3 * width + 4 + width + 3
    earlier = 63 / 2  # of a chunk, on average
    pairs = int(2 * earlier * width) + 3 * 64 * width  # keys with keys and queries; with values
    check_shown(SPEC, own=own, state=state, products=maps + pairs + 3 * 4 * 3 * 3)


def test_a_model_starts_with_slow_decays() -> None:
    """A token that is all zeros fades to exp(-0.05)."""
    model = zoo.build(SPEC)
    tensors = dict(model.get_submodule("decoder.layers.0.self_attn").named_parameters())
    steps = F.softplus(tensors["rate_bias"]).unflatten(0, (4, 3))
    rates = tensors["log_rate"].exp()[:, None] * steps
    torch.testing.assert_close(rates, torch.full((4, 3), 0.05))
