"""Inspect the state of modules: what a call must not change, and what modules must not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


def in_collections(
    model: Transformer, cls: type[nn.Module | torch.Tensor], known: Iterable[object]
) -> Iterator[str]:
    """Yield the names of plain lists and dicts with modules or tensors that are not `known`: torch
    does not look for them there."""
    there = {id(one) for one in known}
    for owner, module in model.named_modules():
        for name, value in vars(module).items():
            inside = value.values() if isinstance(value, dict) else value
            if isinstance(value, list | tuple | dict) and any(
                isinstance(part, cls) and id(part) not in there for part in inside
            ):
                yield f"{owner}.{name}"


State = dict[str, tuple[object, ...]]
"""Values by name, each with what shows a change in place."""


def state_of(model: Transformer) -> State:
    """Return the attributes of all modules by name."""
    return {
        f"{owner}.{name}": _marked(value)
        for owner, module in model.named_modules()
        for name, value in {**vars(module), **module._parameters, **module._buffers}.items()
    }


def shared_state(model: Transformer) -> State:
    """Return what the modules share with those of other models, by name: the attributes of their
    classes, and the variables of the files of these."""
    classes = dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__)
    own = [cls for cls in classes if cls is not object and not cls.__module__.startswith("torch.")]
    state = {
        f"{cls.__name__}.{name}": _marked(value)
        for cls in own
        for name, value in vars(cls).items()
        if not name.startswith("__")
    }
    for cls in own:
        for method in vars(cls).values():
            variables = getattr(method, "__globals__", {})
            state |= {
                name: _marked(value)
                for name, value in variables.items()
                if isinstance(value, list | dict | set | torch.Tensor) and name[:2] != "__"
            }
    return state


def _marked(value: object) -> tuple[object, ...]:
    """Return a value with the version of a tensor, or what a collection holds."""
    if isinstance(value, torch.Tensor):
        return value, value._version
    if isinstance(value, Mapping):
        return value, *(part for pair in value.items() for part in pair)
    return (value, *value) if isinstance(value, list | set) else (value,)


def changes(before: State, after: State) -> Iterator[str]:
    """Yield the names of values that differ from those before."""
    for name, marked in after.items():
        old = before.get(name, ())
        if len(old) != len(marked) or any(
            a is not b and not (isinstance(a, int) and a == b)
            for a, b in zip(old, marked, strict=True)
        ):
            yield name
