"""Functions for modules that are cut (`zoo.layout.Cut`) and compute with their parts themselves.

If the module is not cut, each function returns its argument at no cost. `module` is the cut module:
its `weight` knows the mesh of the processes that have the other parts.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import torch
from torch import nn

PerhapsTensor = TypeVar("PerhapsTensor", torch.Tensor, torch.Tensor | None)
"""A tensor; or, such as a mask, a tensor or None, which stays None."""


def mesh_of(module: nn.Module) -> Any:
    """The mesh of a cut module; None if the module is not cut, or has no weight."""
    return getattr(module._parameters.get("weight"), "device_mesh", None)


def own_part(tensor: PerhapsTensor, dim: int, module: nn.Module) -> PerhapsTensor:
    """The part of a tensor that belongs to this process' part of a cut module.

    Args:
        tensor: a tensor that is the same in all processes, or None. Along `dim` it is as long as
            all parts together, or has size 1 and is shared by all of them.
        dim: the dimension that is cut.
        module: the cut module.

    Returns:
        The part along `dim`; the whole tensor if the module is not cut.
    """
    mesh = None if tensor is None else mesh_of(module)
    if tensor is None or mesh is None or tensor.dim() < -dim or tensor.shape[dim] == 1:
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return whole.redistribute(placements=[Shard(dim % tensor.dim())]).to_local()


def all_parts(tensor: PerhapsTensor, dim: int, module: nn.Module) -> PerhapsTensor:
    """The inverse of `own_part`: the parts of all processes, concatenated along `dim`."""
    mesh = None if tensor is None else mesh_of(module)
    return tensor if tensor is None or mesh is None else _joined(tensor, dim, mesh)


def _joined(tensor: torch.Tensor, dim: int, mesh: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    parts = DTensor.from_local(tensor, mesh, [Shard(dim % tensor.dim())], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def part_for(tensor: torch.Tensor, dim: int, module: nn.Module, mesh: Any) -> torch.Tensor:
    """The part that goes with `module` of a tensor that was computed elsewhere: by a module that is
    cut over `mesh`, as `mesh_of` told, or by one that is not, for None. Nothing is exchanged if
    both are cut, or neither is."""
    if (mesh_of(module) is None) == (mesh is None):
        return tensor
    return own_part(tensor, dim, module) if mesh is None else _joined(tensor, dim, mesh)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that this process has, as a plain tensor."""
    # DTensors are recognized by an attribute, since their class is not imported without a mesh.
    if getattr(tensor, "device_mesh", None) is None:
        return tensor
    plain: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return plain


def entering(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return `x`, the same in all processes, for each to compute its part with. Its gradient is the
    sum of the gradients in all processes."""
    mesh = mesh_of(module)
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    same = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return same.to_local(grad_placements=[Partial()])


def summed(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """The sum over all processes of the results that they computed with their parts."""
    mesh = mesh_of(module)
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    summands = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return summands.redistribute(placements=[Replicate()]).to_local()


def is_fetched(model: nn.Module) -> bool:
    """Whether some weights of the model are with other processes, and FSDP2 fetches them while it
    computes."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported without a mesh
    return fsdp is not None and any(isinstance(one, fsdp.FSDPModule) for one in model.modules())
