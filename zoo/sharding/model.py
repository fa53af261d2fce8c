"""A model of which each process has a share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from zoo.sharding.cutting import cut
from zoo.sharding.mesh import meshes_of
from zoo.transformer import Transformer


def shard(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread a meta-built model over the processes of a mesh, in place.

    Along `tp`, each process has some heads, hidden units and tokens of the vocabulary, as far as
    the components say how (`zoo.layout.Cut`). Along `fsdp`, each has some rows of every tensor, and
    layer by layer the others' are fetched while they are needed (FSDP2: Zhao et al. 2023,
    arXiv:2304.11277).

    Args:
        model: with shapes and no values.
        mesh: the processes; this one is among them.

    Raises:
        ZooError: the mesh has other dimensions, or some heads cannot be spread evenly.
    """
    meshes = meshes_of(mesh)
    if meshes.tensor is not None:
        cut(model, meshes.tensor)
    if meshes.data is not None:
        for name in model.spec.layout.layers():
            fully_shard(model.get_submodule(name), mesh=meshes.data)
        # The rest is fetched at once, so that tied tables stay together, and one.
        fully_shard(model, mesh=meshes.data)
        for method in ("encode", "decode"):
            if hasattr(model, method):
                register_fsdp_forward_method(model, method)
                setattr(model, method, _outside_inference_mode(getattr(model, method)))
        # FSDP2's hooks run around `forward`, and Python looks for `__call__` in the class alone.
        sharded = type(model)
        called = {"__call__": _outside_inference_mode(sharded.__call__)}
        model.__class__ = type(sharded.__name__, (sharded,), called)


def _outside_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as it may be called in inference mode, as `zoo.generate` does: FSDP2 keeps the
    tensors that it fetches into, and those made in that mode are of no use outside, nor in part to
    itself."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return called
