"""Layers that keep no intermediate results for the backward pass, but are computed again in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zoo.transformer import Transformer


def recompute_layers(model: Transformer) -> None:
    """Let each layer keep its inputs alone for the backward pass, which then calls it once more
    (Chen et al. 2016, arXiv:1604.06174), in place. The gradients are the same, bit by bit: the
    second call draws the same random numbers, and leaves no other traces."""
    for name in model.spec.layout.layers():
        layer = model.get_submodule(name)
        # Inside of the hooks, so that FSDP2 has fetched the weights once for the backward pass.
        layer.__dict__["forward"] = _recomputed(layer)


def _recomputed(layer: nn.Module) -> Any:
    forward = layer.forward
    contexts = partial(_contexts, layer)

    @wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return called


def _contexts(layer: nn.Module) -> tuple[Any, Any]:
    """What the first and the second call of a layer run in."""
    return nullcontext(), _without_traces(layer)


@contextmanager
def _without_traces(layer: nn.Module) -> Generator[None]:
    """Undo at the end of the block what a call leaves in the modules of a layer: running
    statistics, which would count a batch twice, and an auxiliary loss, which has been added
    already, and whose graph would be kept until the next step."""
    modules = list(layer.modules())
    told = [one for one in modules if "auxiliary_loss" in vars(one)]
    losses = [(one, one.auxiliary_loss) for one in told]
    buffers = [
        (one, name, buffer) for one in modules for name, buffer in one.named_buffers(recurse=False)
    ]
    for one, name, buffer in buffers:
        setattr(one, name, buffer.clone())
    try:
        yield
    finally:
        for one, name, buffer in buffers:
            setattr(one, name, buffer)
        for one, loss in losses:
            one.auxiliary_loss = loss
