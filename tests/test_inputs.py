"""What a model refuses to be called with, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import zoo

SPEC = {
    "format": 1,
    "name": "small",
    "builder": "decoder",
    "vocab": 10,
    "n_layers": 1,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 8,
}
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a list": (
        [[1, 2]],
        TypeError,
        r"a tensor, such as torch\.tensor\(\[\[5, 9, 33\]\]\), not a l",
    ),
    "one sequence": (torch.tensor([1, 2]), ValueError, r"not \(2,\); a single sequence is `ids\["),
    "a dimension too many": (torch.ones(1, 2, 3).long(), ValueError, r"length\), not \(1, 2, 3\)$"),
    "numbers": (torch.ones(1, 2), TypeError, r"integers \(torch\.int64\), not torch\.float32"),
    "truths": (torch.ones(1, 2) > 0, TypeError, r"integers \(torch\.int64\), not torch\.bool"),
    "an id beyond": (torch.tensor([[1, 10]]), IndexError, r"from 0 to 9; these are from 1 to 10"),
    "an id below": (torch.tensor([[-1, 3]]), IndexError, r"10 tokens.*these are from -1 to 3"),
    "a flat vector": (torch.ones(8), ValueError, r"vectors are \(batch, length, width\), not \(8,"),
}


@pytest.mark.parametrize(("inputs", "kind", "message"), BAD.values(), ids=BAD)
def test_inputs_that_are_none(inputs: Any, kind: type[Exception], message: str) -> None:
    model = zoo.build(SPEC)
    with pytest.raises(kind, match=message):
        model(inputs)


def test_what_is_taken() -> None:
    """Integers of 32 bits too; and the checks keep nobody from compiling the whole model."""
    model = zoo.build(SPEC).eval()
    ids = torch.tensor([[1, 9, 0]])
    torch.testing.assert_close(model(ids.int()), model(ids), rtol=0, atol=0)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", torch.int64])
def test_a_dtype_that_is_none(dtype: Any) -> None:
    with pytest.raises(TypeError, match="a floating-point one of torch"):
        zoo.build(SPEC, dtype=dtype)


def test_public_names_are_offered() -> None:
    """To `help(zoo)` and to whoever presses tab, also before they are imported."""
    assert set(zoo.__all__) <= set(dir(zoo))
    assert all(hasattr(zoo, name) for name in dir(zoo))
