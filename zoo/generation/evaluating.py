"""Evaluation mode for as long as a model generates, also if several threads let it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn


@dataclass(slots=True)
class _Uses:
    """How many blocks a model is in, and which of its modules will be training after the last."""

    count: int = 0
    trained: list[nn.Module] = field(default_factory=list[nn.Module])


_in_use: WeakKeyDictionary[nn.Module, _Uses] = WeakKeyDictionary()
_lock = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in the mode in which it was.

    The mode belongs to the model and not to a thread. So of several blocks at once, the last that
    ends gives it back: one that ended earlier would switch on the dropout of the others.
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
