"""`rg_lru` against the recurrence of its paper (De et al. 2024, arXiv:2402.19427, equations 1 to
4), and its state in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.attention_cases import SMALL_DECODER, made, randn
from references.recurrences import check_hidden_token, check_recurrence, check_shown

import zoo
from zoo.cache import Cache
from zoo.errors import SpecError
from zoo_components.modules import decay as module_of
from zoo_components.modules.decay import fading_sums
from zoo_components.modules.rg_lru import complement
from zoo_components.norm import NoNorm
from zoo_components.rg_lru import RgLru

WIDTH = 6
SPEC = SMALL_DECODER | {
    "position": "none",
    "attention": {"kind": "rg_lru", "d_inner": 24},
}


def described(**fields: Any) -> RgLru:
    stated = {"n_heads": 2, "d_inner": 8, "activation": "gelu_tanh"} | fields
    norm = NoNorm(kind="none", width=WIDTH)
    return RgLru(kind="rg_lru", norm=norm, d_model=WIDTH, **stated)


def recurrent(a: RgLru, t: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Token by token, for one sequence (length, width)."""

    def mapped(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))

    def gate(name: str, u: torch.Tensor) -> torch.Tensor:
        bias = t[f"{name}.bias"].flatten() if f"{name}.bias" in t else 0.0
        return torch.sigmoid(u @ torch.block_diag(*t[f"{name}.weight"]).T + bias)

    weight = t["conv.weight"]
    padded = F.pad(mapped("v_proj", x).T, (weight.shape[-1] - 1, 0))
    u = F.conv1d(padded[None], weight, t.get("conv.bias"), groups=len(weight))[0].T
    h, read = torch.zeros(a.d_inner).double(), []
    for i in range(len(u)):
        # sigmoid(-rate) is the `a` of the paper, and 8 its c.
        decay = torch.sigmoid(-t["rate"]) ** (8 * gate("rate_gate", u[i]))
        root = 1.0 if i == 0 else (1 - decay**2).sqrt()
        h = decay * h + root * gate("in_gate", u[i]) * u[i]
        read.append(h)
    gates = mapped("gate_proj", x)
    gates = F.gelu(gates, approximate="tanh") if a.activation == "gelu_tanh" else F.silu(gates)
    return mapped("o_proj", gates * torch.stack(read))


@pytest.mark.parametrize("length", [1, 2, 5, 37])
@pytest.mark.parametrize(
    "fields", [{}, {"bias": False, "n_heads": 8}, {"kernel_size": 1, "activation": "silu"}]
)
def test_the_recurrence(fields: dict[str, Any], length: int) -> None:
    check_recurrence(described(**fields), recurrent, length)


def test_a_hidden_token_changes_nothing() -> None:
    """The first token that is seen is the first."""
    check_hidden_token(made(described(kernel_size=1)), WIDTH)


def test_the_first_token_may_come_after_hidden_ones_of_an_earlier_call() -> None:
    module, x = made(described(kernel_size=1)), randn(2, 6, WIDTH)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1]]).bool()
    cache, parts = Cache(6), []
    for part, seen in zip(x.split((2, 2, 2), 1), mask.split((2, 2, 2), 1), strict=True):
        cache.past.append(2, seen=seen, counted=None, device=x.device)
        own = cache.layer(0).of("self_attn")
        parts.append(module(part, mask=cache.past.mask, cache=own)[0])
    found = torch.cat(parts, 1)
    for row in range(2):
        alone = module(x[row : row + 1, mask[row]])[0][0]
        torch.testing.assert_close(found[row, mask[row]], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("length", [1, 3, 8, 13])
def test_sums_by_doubling_and_by_pairs(
    length: int, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the recurrence, and their gradients are those of finite differences."""
    added, log_decay = randn(2, length, 3), -randn(2, length, 3, seed=4).exp()
    before = randn(2, 3, seed=5) if begun else None
    state = torch.zeros(2, 3).double() if before is None else before
    expected = []
    for i in range(length):
        state = log_decay[:, i].exp() * state + added[:, i]
        expected.append(state)
    given = [t.requires_grad_() for t in (added, log_decay)]
    for graph in (False, True):
        monkeypatch.setattr(module_of, "in_graph", lambda graph=graph: graph)
        found = fading_sums(added, log_decay, before)
        torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=1e-12)
        assert torch.autograd.gradcheck(lambda a, b: fading_sums(a, b, before), given)


def test_a_decay_that_is_rounded_to_one_has_a_gradient() -> None:
    """The root of 1 - a^2 is 0 there, and its slope without end."""
    log_decay = torch.tensor([0.0, -1e-45, -1e-20, -0.5, -200.0], requires_grad=True)
    root = complement(log_decay)
    expected = (-torch.expm1(2 * log_decay.detach().double())).sqrt()
    torch.testing.assert_close(root.double(), expected, rtol=1e-6, atol=1e-18)
    root.sum().backward()
    assert log_decay.grad is not None
    assert log_decay.grad.isfinite().all()


def test_gates_that_are_closed_train() -> None:
    """In float32, with gates so far below zero that nothing fades, and with hidden tokens."""
    module = made(described(), torch.float32)
    module.rate_gate.bias.data.fill_(-200.0)
    x = randn(1, 9, WIDTH).float()
    mask = torch.ones(1, 1, 1, 9, dtype=torch.bool)
    mask[..., :2] = False
    module(x, mask=mask)[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_what_show_says() -> None:
    """The parameters, the state and the operations, in closed form."""
    inner, block = 24, 24 // 4
    maps, gates = 3 * 16 * inner, 2 * inner * block
    own = maps + 2 * inner + 16 + gates + 2 * inner + (4 + 1) * inner + inner
    check_shown(SPEC, own=own, state=4 * inner + 1, products=maps + gates)


def test_the_start_fades_slowly() -> None:
    """An input of zeros fades to a half within 14 tokens, as those of the other mixers."""
    module = zoo.build(SPEC).decoder.layers[0].self_attn
    rate = 8 * F.softplus(module.rate) * 0.5
    torch.testing.assert_close(rate, torch.full((24,), 0.05))


def test_blocks_that_do_not_fit() -> None:
    with pytest.raises(SpecError, match="d_inner = 24 is not divisible by n_heads = 5"):
        zoo.read_spec({**SPEC, "n_heads": 5})
