"""Evaluation mode while a model generates, also when several threads use the model at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn


@dataclass(slots=True)
class _Uses:
    """The number of `evaluating` blocks a model is in, and the modules to put back into training
    mode after the last."""

    count: int = 0
    trained: list[nn.Module] = field(default_factory=list[nn.Module])


_in_use: WeakKeyDictionary[nn.Module, _Uses] = WeakKeyDictionary()
_lock = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; afterwards restore the mode of every module.

    The mode belongs to the model and not to a thread. So the last of several concurrent blocks
    restores it: if an earlier one did, it would switch on dropout in the others.
    """
    with _lock:
        uses = _in_use.setdefault(model, _Uses())
        uses.count += 1
        training = [module for module in model.modules() if module.training]
        uses.trained += training
        for module in training:
            module.training = False
    try:
        yield
    finally:
        with _lock:
            uses.count -= 1
            if uses.count == 0:
                del _in_use[model]
                for module in uses.trained:
                    module.training = True
