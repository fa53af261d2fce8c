"""The recording of a call on a CPU runs again as a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from zoo.plugin_kit.report import PromiseError
from zoo.plugin_kit.tape import Tape

X = torch.tensor([[3.0, -1.0], [2.0, 5.0]])

ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda x: x @ x.T + 1.0,
    "view": lambda x: x.view(4)[1:].unflatten(0, (3, 1)).expand(3, 2) * 2.0,
    "no_copy": lambda x: x.contiguous().to(x.dtype).reshape(4).neg(),
    "copy": lambda x: x.T.reshape(4).exp(),
    "in_place": lambda x: x.clone().mul_(2.0).index_copy_(0, torch.tensor([1]), x[:1]),
    "new": lambda x: x.new_zeros(2, 2).add_(x),
    "several": lambda x: torch.cat(x.sort(-1).values.split(1, -1), 0),
    "fill": lambda x: x.masked_fill(x > 0, 0.0),
    "set": lambda x: x.clone().index_put_((x > 0,), torch.tensor(7.0)),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", ALIKE)
def test_it_computes_again_from_what_is_there(name: str, inference: bool) -> None:
    call = ALIKE[name]
    with torch.inference_mode(inference), torch.no_grad():
        x = X.clone()
        tape = Tape(lambda: call(x))
        for factor in (1.0, -2.0, 0.5):
            x.copy_(factor * X)
            torch.testing.assert_close(tape(), call(x), rtol=0, atol=0)


def test_a_call_changes_what_outlasts_it() -> None:
    total = torch.zeros(2)
    x = torch.tensor([1.0, 2.0])
    tape = Tape(lambda: total.add_(x))
    for _ in range(3):
        tape()
    assert total.tolist() == [3.0, 6.0]


def test_python_runs_once() -> None:
    """What it has counted, or put in another place, is what it was."""
    x, counted = torch.zeros(1), []

    def call() -> torch.Tensor:
        counted.append(len(counted) + 1)
        return x + counted[-1]

    tape = Tape(call)
    assert [tape().item() for _ in range(3)] == [1.0, 1.0, 1.0]
    assert counted == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.any() else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.clone().index_put_((x > 0,), torch.ones(3)),
        lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), 0),
    ],
)
def test_what_waits_is_refused(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(PromiseError, match="for which it would wait for the GPU"):
        Tape(lambda: call(X))()
