"""Compares a model of the zoo with a reference that has the same weights."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def example(stem: str, **changes: Any) -> dict[str, Any]:
    """The spec `examples/{stem}.toml` as data, with some top-level keys changed."""
    data = tomllib.loads((EXAMPLES / f"{stem}.toml").read_text())
    if "extends" in data:  # data has no folder to look in; the registry knows the parents
        data["extends"] = data["extends"].replace("_", "-")
    return data | changes


def renamed(name: str, names: Mapping[str, str]) -> str:
    """A name of the zoo as the reference's, by replacing each part that `names` lists."""
    for ours, theirs in names.items():
        name = name.replace(ours, theirs)
    return name


def same_weights(model: nn.Module, reference: nn.Module, names: Mapping[str, str]) -> None:
    """Shake the reference's vectors, so that no norm is left at ones and zeros, and copy all.

    Fails unless `names` maps the tensors of the two models one to one.
    """
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    theirs = reference.state_dict()
    mapped = {name: renamed(name, names) for name in model.state_dict()}
    assert sorted(mapped.values()) == sorted(theirs)
    model.load_state_dict({name: theirs[other] for name, other in mapped.items()})


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest absolute difference; the shapes must be equal."""
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    return (ours - theirs).abs().max().item()


def differences(
    model: nn.Module,
    reference: nn.Module,
    names: Mapping[str, str],
    run_model: Callable[..., Sequence[Tensor]],
    run_reference: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor] = (),
) -> tuple[float, float]:
    """The largest difference of the outputs, and of the gradients of a random sum of them with
    respect to every parameter and to the floating-point `inputs` that both are called with. The
    sum is scaled so that its largest gradient is 1, which gives the second number a meaning."""
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    ours, theirs = run_model(*leaves[0]), run_reference(*leaves[1])
    assert len(ours) == len(theirs)
    forward = max(difference(a, b) for a, b in zip(ours, theirs, strict=True))
    for module in (model, reference):
        module.zero_grad()
    for a, b in zip(ours, theirs, strict=True):
        weight = torch.randn_like(a)
        (a * weight).sum().backward(retain_graph=True)
        (b * weight).sum().backward(retain_graph=True)
    gradients = {name: p.grad for name, p in reference.named_parameters()}
    pairs = [(p.grad, gradients[renamed(name, names)]) for name, p in model.named_parameters()]
    pairs += [(a.grad, b.grad) for a, b in zip(*leaves, strict=True)]
    assert any(b is not None for _, b in pairs)
    assert all((a is None) == (b is None) for a, b in pairs)
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    largest = max(b.abs().max().item() for _, b in found)
    return forward, max(difference(a, b) for a, b in found) / largest
