"""`mamba` against the recurrence of its paper (Gu and Dao 2023, arXiv:2312.00752), and its state in
the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.attention_cases import chunks_of, made
from references.recurrences import check_hidden_token, check_recurrence

import zoo
from zoo.showing.show import summary_data
from zoo_components.mamba import Mamba
from zoo_components.modules import mamba as module_of
from zoo_components.norm import NoNorm, RmsNorm

WIDTH = 6
SPEC: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 11,
    "n_layers": 3,
    "d_model": 16,
    "position": "none",
    "attention": {"kind": "mamba", "state_size": 3},
    "ffn": "none",
}
chunk = chunks_of(module_of)
NORM = RmsNorm(kind="rms_norm", width=3, eps=1e-2)


def described(**fields: Any) -> Mamba:
    stated = {"d_inner": 5, "state_size": 4, "step_rank": 3} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return Mamba(kind="mamba", norm=norm, d_model=WIDTH, **stated)


def recurrent(a: Mamba, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width)."""

    def mapped(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, t[f"{name}_proj.weight"], t.get(f"{name}_proj.bias"))

    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        if a.latent_norm.kind == "none":
            return x
        return t[f"{name}_norm.weight"] * x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt()

    weight, bias = t["v_conv.weight"], t.get("v_conv.bias")
    padded = F.pad(mapped("v", x).T, (weight.shape[-1] - 1, 0))
    v = F.silu(F.conv1d(padded[None], weight, bias, groups=len(weight))[0].T)
    step = F.softplus(mapped("step", normed("step", mapped("step_a", v))) + t["step_bias"])
    b, c = normed("b", mapped("b", v)), normed("c", mapped("c", v))
    h = torch.zeros(a.d_inner, a.state_size).double()
    read = []
    for i in range(len(x)):
        for channel in range(a.d_inner):
            d = step[i, channel]
            decay = torch.exp(-d * t["log_rate"][channel].exp())
            h = h.index_put((torch.tensor(channel),), decay * h[channel] + d * v[i, channel] * b[i])
        read.append(h @ c[i] + t["skip"] * v[i])
    return mapped("o", torch.stack(read) * F.silu(mapped("gate", x)))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize(
    "fields", [{}, {"bias": True}, {"conv_bias": False, "kernel_size": 1}, {"latent_norm": NORM}]
)
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described(kernel_size=1, bias=True)), WIDTH)


def test_no_tokens() -> None:
    module = made(described())
    output, _ = module(torch.zeros(2, 0, WIDTH, dtype=torch.float64))
    assert output.shape == (2, 0, WIDTH)


def test_what_show_says() -> None:
    """The parameters and the state in closed form. The layer is twice as wide as the model, and the
    latent of the steps has a sixteenth of its width."""
    spec = zoo.read_spec(SPEC)
    inner, states, rank = 32, 3, 1
    assert summary_data(spec)["state_bytes_per_sequence"] == 3 * inner * (states + 3) * 4
    maps = 3 * 16 * inner + inner * (2 * rank + 2 * states)
    own = maps + (4 + 1) * inner + inner * (states + 2)
    assert spec.n_parameters == 2 * 11 * 16 + 3 * (own + 2 * 16) + 2 * 16
