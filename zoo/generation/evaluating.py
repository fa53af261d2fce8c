"""Evaluation mode while a model computes, also when several threads use the model at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from weakref import WeakKeyDictionary

from torch import nn

from zoo.errors import WeightsError
from zoo.transformer import Transformer
from zoo.weights.dtypes import by_dtype, several_dtypes
from zoo.weights.held_tensors import stored


@dataclass(slots=True)
class _Uses:
    """The `evaluating` blocks that a model is in, and the modules to put back into training mode
    after the last."""

    blocks: set[object] = field(default_factory=set[object])
    trained: list[nn.Module] = field(default_factory=list[nn.Module])


_in_use: WeakKeyDictionary[nn.Module, _Uses] = WeakKeyDictionary()
_lock = Lock()


@contextmanager
def evaluating(*models: Transformer) -> Iterator[None]:
    """Put models into evaluation mode; afterwards restore the mode of every module.

    The mode belongs to the model and not to a thread. So the last of several concurrent blocks
    restores it: if an earlier one did, it would switch on dropout in the others.

    Raises:
        WeightsError: torch cannot compute with tensors of several dtypes, as a model has them.
    """
    block = object()
    try:
        for model in models:
            _enter(model, block)
        yield
    except RuntimeError as error:
        if "type" in str(error):
            for model in models:
                _check_dtypes(model, error)
        raise
    finally:
        # A KeyboardInterrupt may come anywhere. If one cut this short, the model would stay in
        # evaluation mode, and later training would be without dropout.
        try:
            _leave(models, block)
        except BaseException:
            _leave(models, block)
            raise


def _check_dtypes(model: Transformer, error: RuntimeError) -> None:
    """Raise `WeightsError` if the error of torch is one of dtypes: if the model has several."""
    found = by_dtype({name: tensor.dtype for name, tensor in stored(model).items()})
    if len(found) > 1:
        reason = str(error).partition("\n")[0]
        message = f"{model.spec.name} cannot compute with tensors of several dtypes ({reason})"
        raise WeightsError(several_dtypes(found, message)) from error


def _enter(model: nn.Module, block: object) -> None:
    with _lock:
        uses = _in_use.setdefault(model, _Uses())
        uses.blocks.add(block)
        for module in model.modules():
            if module.training:
                uses.trained.append(module)
                module.training = False


def _leave(models: Sequence[nn.Module], block: object) -> None:
    """End a block, which may not have been entered or have been left in part."""
    with _lock:
        for model in models:
            uses = _in_use.get(model)
            if uses is None:
                continue
            uses.blocks.discard(block)
            if not uses.blocks:
                for module in uses.trained:
                    module.training = True
                del _in_use[model]
