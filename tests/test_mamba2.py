"""`mamba2` and `mamba2_scaled` against the recurrence of the paper (Dao and Gu 2024,
arXiv:2405.21060), and their state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.attention_cases import SMALL_DECODER, chunks_of, made
from references.recurrences import check_hidden_token, check_recurrence, check_shown

import zoo
from zoo.errors import SpecError
from zoo_components.mamba2 import Mamba2, ScaledMamba2, StateSpace
from zoo_components.modules import decay as module_of
from zoo_components.norm import NoNorm

WIDTH = 6
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "mamba2", "n_groups": 2, "state_size": 3},
}
chunk = chunks_of(module_of)


def described(**fields: Any) -> Mamba2:
    stated = {"n_heads": 4, "head_dim": 3, "n_groups": 2, "state_size": 5} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return Mamba2(kind="mamba2", norm=norm, d_model=WIDTH, eps=1e-3, **stated)


def described_scaled(**fields: Any) -> ScaledMamba2:
    factors = {"gate_scale": 0.7, "v_scale": 1.5, "b_scale": 0.4, "c_scale": 1.3, "step_scale": 0.6}
    stated = {"n_heads": 4, "head_dim": 3, "n_groups": 2, "state_size": 5} | factors | fields
    if stated.get("gated_norm", "none") != "none":
        stated["eps"] = 1e-3
    norm = NoNorm(kind="none", width=WIDTH)
    return ScaledMamba2(kind="mamba2_scaled", norm=norm, d_model=WIDTH, **stated)


def recurrent(a: StateSpace, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width)."""

    def mapped(name: str) -> torch.Tensor:
        factor = getattr(a, f"{name}_scale", 1.0)
        return factor * F.linear(x, t[f"{name}_proj.weight"], t.get(f"{name}_proj.bias"))

    def convolved(name: str) -> torch.Tensor:
        weight, bias = t[f"{name}_conv.weight"], t.get(f"{name}_conv.bias")
        padded = F.pad(mapped(name).T, (weight.shape[-1] - 1, 0))
        return F.silu(F.conv1d(padded[None], weight, bias, groups=len(weight))[0].T)

    v, b, c = (convolved(name) for name in "vbc")
    step = F.softplus(mapped("step") + t["step_bias"])
    step = step.clamp(a.min_step or 0.0, a.max_step or torch.inf)
    heads = []
    for h in range(a.n_heads):
        group = h // (a.n_heads // a.n_groups)
        of_group = slice(group * a.state_size, (group + 1) * a.state_size)
        s = torch.zeros(a.state_size, a.head_dim).double()
        read = []
        for i in range(len(x)):
            xi = v[i, h * a.head_dim : (h + 1) * a.head_dim]
            decay = torch.exp(-step[i, h] * t["log_rate"][h].exp())
            s = decay * s + step[i, h] * torch.outer(b[i, of_group], xi)
            read.append(c[i, of_group] @ s + t["skip"][h] * xi)
        heads.append(torch.stack(read))
    y, gate = torch.cat(heads, -1), F.silu(mapped("gate"))

    def normed(y: torch.Tensor) -> torch.Tensor:
        groups = y.chunk(a.n_groups, -1)
        parts = [g / (g.square().mean(-1, keepdim=True) + 1e-3).sqrt() for g in groups]
        return torch.cat(parts, -1) * t["inner_norm.weight"]

    gated = {
        "after_gate": lambda: normed(y * gate),
        "before_gate": lambda: normed(y) * gate,
        "none": lambda: y * gate,
    }[getattr(a, "gated_norm", "after_gate")]()
    return F.linear(gated, t["o_proj.weight"], t.get("o_proj.bias"))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_groups": 1, "bias": True},
        {"n_groups": 4, "conv_bias": False},
        {"kernel_size": 1},
        {"min_step": 0.7, "max_step": 1.2},
    ],
)
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize(
    "fields",
    [
        {"bias": True},
        {"conv_bias": False, "n_groups": 1},
        {"gated_norm": "before_gate"},
        {"gated_norm": "after_gate", "n_groups": 4},
    ],
)
def test_factors_and_norms(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described_scaled(**fields), recurrent, length)


def test_without_factors_it_is_mamba2() -> None:
    """With equal tensors, it computes the same, bit for bit."""
    kinds = ({"kind": "mamba2"}, {"kind": "mamba2_scaled", "gated_norm": "after_gate"})
    plain, scaled = (
        zoo.build({**SPEC, "attention": SPEC["attention"] | kind}).eval() for kind in kinds
    )
    scaled.load_state_dict(plain.state_dict())
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    assert torch.equal(plain(ids), scaled(ids))


def test_an_eps_of_no_norm() -> None:
    attention = SPEC["attention"] | {"kind": "mamba2_scaled", "gated_norm": "none", "eps": 1e-3}
    with pytest.raises(SpecError, match=r'`eps` .* changes nothing beside `gated_norm = "none"`'):
        zoo.read_spec({**SPEC, "attention": attention})


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described(kernel_size=1, bias=True)), WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form. The layer is twice as wide as
    the model."""
    inner, vectors = 32, 2 * 3
    convolved = inner + 2 * vectors
    maps = 16 * (inner + convolved + 4) + inner * 16
    own = maps + (4 + 1) * convolved + 3 * 4 + inner
    sums = 2 * 64 * 3 + 4 * (64 * 8 + 2 * 3 * 8)  # pairs of each group, then of each head
    check_shown(SPEC, own=own, state=inner * 3 + 3 * convolved, products=maps + sums)


def test_sizes_that_do_not_fit() -> None:
    attention = SPEC["attention"] | {"n_groups": 3}
    with pytest.raises(SpecError, match="n_heads = 4 is not divisible by n_groups = 3"):
        zoo.read_spec({**SPEC, "attention": attention})
    with pytest.raises(SpecError, match=r"min_step = 0\.5 is greater than max_step = 0\.25"):
        zoo.read_spec(
            {**SPEC, "attention": SPEC["attention"] | {"min_step": 0.5, "max_step": 0.25}}
        )
    with pytest.raises(SpecError, match="2 d_model = 32 is not divisible by n_heads = 6"):
        zoo.read_spec({**SPEC, "n_heads": 6})
