"""Inspect the state of modules: what a call must not change, and what modules must not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized

import torch
from torch import nn

from zoo.transformer import Transformer


def values_of(model: Transformer) -> dict[str, torch.Tensor]:
    """Return the parameters and all buffers, including those that are not stored."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def plain_tensors(model: Transformer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that are plain attributes of modules, not parameters or buffers, by name."""
    for owner, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{owner}.{name}", value


def unknown_modules(model: Transformer) -> Iterator[str]:
    """Yield the names of plain lists and dicts of modules, which are not registered with torch."""
    known = set(model.modules())
    for owner, module in model.named_modules():
        for name, value in vars(module).items():
            inside = value.values() if isinstance(value, dict) else value
            if isinstance(value, list | tuple | dict) and any(
                isinstance(part, nn.Module) and part not in known for part in inside
            ):
                yield f"{owner}.{name}"


def state_of(model: Transformer) -> dict[str, tuple[object, int]]:
    """Return the attributes of all modules by name, each with a version or a length, which shows
    changes in place."""
    state: dict[str, tuple[object, int]] = {}
    for owner, module in model.named_modules():
        for name, value in {**vars(module), **module._parameters, **module._buffers}.items():
            if isinstance(value, torch.Tensor):
                state[f"{owner}.{name}"] = value, value._version
            else:
                state[f"{owner}.{name}"] = value, len(value) if isinstance(value, Sized) else 0
    return state


def changes(before: Mapping[str, tuple[object, int]], model: Transformer) -> Iterator[str]:
    """Yield the names of attributes that differ from `before`."""
    for name, (value, count) in state_of(model).items():
        if name not in before or before[name][0] is not value or before[name][1] != count:
            yield name
