"""Sharding a model over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from zoo.errors import Place, WeightsError
from zoo.sharding.cutting import cut
from zoo.sharding.mesh import meshes_of
from zoo.spec import ModelSpec
from zoo.transformer import Transformer
from zoo.weights.dtypes import by_dtype, several_dtypes
from zoo.weights.held_tensors import stored

_METHODS = (
    "encode",
    "decode",
    "read_images",
    "read_sounds",
    "insert_images",
    "insert_sounds",
    "encode_image",
    "encode_sound",
    "encode_text",
    "compare",
)
"""The methods of models that compute, beside `forward`."""


def shard(model: Transformer, mesh: DeviceMesh) -> None:
    """Spread a meta-built model over the processes of a mesh, in place.

    Along `tp`, each process has some heads, hidden units and tokens of the vocabulary, where the
    components say how to cut them (`zoo.layout.Cut`). Along `fsdp`, each process has some rows of
    every tensor, and the other rows are fetched layer by layer while they are needed (FSDP2: Zhao
    et al. 2023, arXiv:2304.11277).

    Args:
        model: a meta-built model, with shapes and no values.
        mesh: the processes, this one included.

    Raises:
        ZooError: the mesh has unknown dimensions, or some heads cannot be spread evenly.
    """
    meshes = meshes_of(mesh)
    if meshes.tensor is not None:
        cut(model, meshes.tensor)
    if meshes.data is not None:
        for name in _own_groups(model.spec):
            fully_shard(model.get_submodule(name), mesh=meshes.data)
        # The rest is one group, so that tied tensors are fetched together and stay one tensor.
        fully_shard(model, mesh=meshes.data)
        reach_methods(model)


def _own_groups(spec: ModelSpec) -> list[str]:
    """The names of the layers that FSDP2 fetches one by one: those without tensors of other parts
    of the model."""
    tied = (*spec.ties, *spec.ties.values())
    layers = spec.layout.layers()
    return [one for one in layers if not any(name.startswith(f"{one}.") for name in tied)]


def check_dtypes(
    model: Transformer, dtypes: Mapping[str, torch.dtype], mesh: DeviceMesh, where: Place
) -> None:
    """Check that the parameters that FSDP2 fetches together, those of a layer or of the rest, are
    to have one dtype, without which it computes nothing.

    Args:
        model: a meta-built model.
        dtypes: the dtype that each of its tensors will have, by stored name.
        mesh: the processes over which the model is to be spread.
        where: the weights.

    Raises:
        WeightsError: they have several.
        ZooError: the mesh has unknown dimensions.
    """
    if meshes_of(mesh).data is None:
        return
    layers = _own_groups(model.spec)
    groups: dict[str, dict[str, torch.dtype]] = {}
    for name, tensor in stored(model).items():
        if isinstance(tensor, nn.Parameter):
            layer = next((layer for layer in layers if name.startswith(f"{layer}.")), "")
            groups.setdefault(layer, {})[name] = dtypes[name]
    for layer, group in groups.items():
        if len(found := by_dtype(group)) > 1:
            what = f"`{layer}`" if layer else "what is in no layer"
            message = f"along `fsdp`, {what} is fetched as one, and has several dtypes"
            problem = several_dtypes(found, message)
            raise WeightsError(problem._replace(place=where))


def reach_methods(model: Transformer) -> None:
    """Let FSDP2 fetch weights at every method that computes, and outside of inference mode, in
    place.

    By itself `fully_shard` does so at `forward` alone. Methods that are registered already, and
    models that are not sharded by FSDP2, are left as they are.
    """
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        return
    for method in _METHODS:
        if hasattr(model, method) and method not in vars(model):  # where FSDP2 registers them
            register_fsdp_forward_method(model, method)  # nothing, if only layers are sharded
            setattr(model, method, _outside_inference_mode(getattr(model, method)))
    # FSDP2's hooks run around `forward`, and Python looks up `__call__` only in the class.
    sharded = type(model)
    if "__call__" not in vars(sharded):
        called = {"__call__": _outside_inference_mode(sharded.__call__)}
        model.__class__ = type(sharded.__name__, (sharded,), called)


def _outside_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method so that it leaves inference mode, in which `zoo.generate` calls it: FSDP2
    keeps the buffers that it fetches into, and inference tensors cannot be used outside of that
    mode, nor by some parts of FSDP2 itself."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return called
