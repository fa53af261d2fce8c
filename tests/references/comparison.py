"""Comparison of a model of the zoo with a reference that has the same weights."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
# In float32, at full depth and width, a reference differs by 1.0e-6 to 1.3e-6 from its own float64
# result, and so does the zoo, which rounds in another order (fused attention, one map for each of
# q, k and v). Where the zoo can compute in the reference's order, the tolerance is 1e-6.
ROUNDED = TOLERANCE | {torch.float32: 2e-6}

DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)

Tensors = Mapping[str, Tensor]


def example(stem: str, **changes: Any) -> dict[str, Any]:
    """The spec `examples/{stem}.toml` as data, with some keys changed at the top or in a table."""
    data = tomllib.loads((EXAMPLES / f"{stem}.toml").read_text())
    if "extends" in data:  # data has no folder to look in; the registry knows the parents
        data["extends"] = data["extends"].replace("_", "-")
    for key, value in changes.items():
        data[key] = data.get(key, {}) | value if isinstance(value, dict) else value
    return data


@dataclass
class Twins:
    """A model and a reference whose weights are made equal when this is made.

    Args:
        names: parts of the model's tensor names, and the reference's names for them.
        unpack: splits tensors that the reference stores as one.
    """

    model: nn.Module
    reference: nn.Module
    names: Mapping[str, str]
    unpack: Callable[[Tensors], Tensors] = dict

    def __post_init__(self) -> None:
        with torch.no_grad():  # random values: norms of ones and zeros would hide mistakes
            for parameter in self.reference.parameters():
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
        theirs = self.unpack(self.reference.state_dict())
        mapped = {name: self.renamed(name) for name in self.model.state_dict()}
        assert sorted(mapped.values()) == sorted(theirs)  # one to one, and complete
        self.model.load_state_dict({name: theirs[other] for name, other in mapped.items()})

    def renamed(self, name: str) -> str:
        for ours, theirs in self.names.items():
            name = name.replace(ours, theirs)
        return name

    def assert_equal(
        self,
        run_model: Callable[..., Sequence[Tensor]],
        run_reference: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor] = (),
        *,
        gradients: bool = True,
        tolerance: float | None = None,
    ) -> None:
        """Assert that outputs and gradients of both are equal, by default to the tolerance of their
        dtype.

        Gradients are those of a random sum of the outputs, with respect to every parameter and to
        the floating-point `inputs` that both are called with. The sum is scaled so that its
        largest gradient is 1: without it, an absolute tolerance would mean nothing.
        """
        tolerance = tolerance or TOLERANCE[next(self.reference.parameters()).dtype]
        leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
        pairs = list(zip(run_model(*leaves[0]), run_reference(*leaves[1]), strict=True))
        worst = max(difference(a, b) for a, b in pairs)
        assert worst <= tolerance, f"the outputs differ by {worst}"
        if not gradients:
            return
        weights = [torch.randn_like(b) for _, b in pairs]
        for side, module in enumerate((self.model, self.reference)):
            module.zero_grad()
            outputs = [pair[side] for pair in pairs]
            total = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
            total.backward()
        ours = {self.renamed(name): p.grad for name, p in self.model.named_parameters()}
        theirs = self.unpack({name: p.grad for name, p in self.reference.named_parameters()})
        used = [name for name in theirs if theirs[name] is not None]
        assert used == [name for name in theirs if ours[name] is not None]
        found = [(ours[name], theirs[name]) for name in used]
        found += [(a.grad, b.grad) for a, b in zip(*leaves, strict=True)]
        largest = max(b.abs().max().item() for _, b in found)
        worst = max(difference(a, b) for a, b in found) / largest
        assert worst <= tolerance, f"the gradients differ by {worst}"


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest absolute difference of two finite tensors of one shape."""
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    return (ours - theirs).abs().max().item()
