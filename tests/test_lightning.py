"""`lightning` attention against its recurrence, token by token (Li et al. 2025, arXiv:2501.08313,
section 2.2), and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references.attention_cases import SMALL_DECODER, chunks_of, made, rms
from references.recurrences import check_hidden_token, check_recurrence, check_shown

import zoo
from zoo.errors import SpecError
from zoo_components.lightning import Lightning
from zoo_components.modules import decay as module_of
from zoo_components.norm import NoNorm

WIDTH = 6
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "lightning", "head_dim": 3},
}
chunk = chunks_of(module_of)


def described(**fields: Any) -> Lightning:
    stated = {"n_heads": 4, "head_dim": 3} | fields
    norm, inner_norm = NoNorm(kind="none", width=WIDTH), rms(stated["n_heads"] * stated["head_dim"])
    return Lightning(kind="lightning", norm=norm, d_model=WIDTH, inner_norm=inner_norm, **stated)


def recurrent(a: Lightning, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width)."""
    q, k, v, gate = (x @ t[f"{name}_proj.weight"].T for name in ("q", "k", "v", "gate"))
    q, k, v = (one * torch.sigmoid(one) for one in (q, k, v))
    heads = []
    for h in range(a.n_heads):
        decay = 0.5 ** (8 * (h + 1) / a.n_heads) * a.rate
        at = slice(h * a.head_dim, (h + 1) * a.head_dim)
        s = torch.zeros(a.head_dim, a.head_dim).double()
        read = []
        for i in range(len(x)):
            s = s * 2.718281828459045**-decay + torch.outer(v[i, at], k[i, at])
            read.append(s @ q[i, at])
        heads.append(torch.stack(read))
    o = torch.cat(heads, -1)
    normed = o / (o.square().mean(-1, keepdim=True) + 1e-3).sqrt() * t["inner_norm.weight"]
    return (normed * torch.sigmoid(gate)) @ t["o_proj.weight"].T


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize("fields", [{}, {"n_heads": 3, "rate": 0.4}, {"head_dim": 5, "rate": 0.0}])
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


@pytest.mark.usefixtures("chunk")
def test_a_hidden_token_changes_nothing() -> None:
    check_hidden_token(made(described()), WIDTH)


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    inner = 4 * 3
    maps = 5 * 16 * inner
    sums = 4 * (2 * 64 * 3 + 2 * 3 * 3)  # of one token: its pairs, and the state
    check_shown(SPEC, own=maps + inner, state=inner * 3, products=maps + sums)


def test_layers_with_rates_of_their_own() -> None:
    rates = [1.0, 0.5, 0.0]
    attention = SPEC["attention"] | {"rate": {"per_layer": rates}}
    model = zoo.build({**SPEC, "attention": attention})
    tables = [layer.self_attn.table(4).flatten() for layer in model.decoder.layers]
    slowest = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()
    torch.testing.assert_close(tables, [rate * slowest for rate in rates], rtol=1e-14, atol=0)


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(SpecError, match="d_model = 16 is not divisible by n_heads = 3"):
        zoo.read_spec({**SPEC, "n_heads": 3, "attention": "lightning"})
