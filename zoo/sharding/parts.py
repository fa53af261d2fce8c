"""For modules that are cut (`zoo.layout.Cut`) and compute with their parts themselves.

Each function does nothing, and costs nothing, where the module is whole. `module` is the one that
is cut: its `weight` knows the processes that have the other parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def own_part(tensor: torch.Tensor, dim: int, module: nn.Module) -> torch.Tensor:
    """The part of a tensor that goes with this process' part of a cut module.

    Args:
        tensor: of all processes, the same in each; along `dim` it is as long as all parts together,
            or 1 long, for all of them.
        dim: the dimension that is cut.
        module: the one that is cut.

    Returns:
        The part along `dim`; all of it if the module is whole.
    """
    mesh = _mesh_of(module)
    if mesh is None or tensor.dim() < -dim or tensor.shape[dim] == 1:
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return whole.redistribute(placements=[Shard(dim % tensor.dim())]).to_local()


def all_parts(tensor: torch.Tensor, dim: int, module: nn.Module) -> torch.Tensor:
    """The opposite: the parts of all processes, one after the other along `dim`."""
    mesh = _mesh_of(module)
    if mesh is None:
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    parts = DTensor.from_local(tensor, mesh, [Shard(dim % tensor.dim())], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that this process has, as a plain tensor."""
    # Told by an attribute of DTensors, since their class is not imported where there is no mesh.
    if getattr(tensor, "device_mesh", None) is None:
        return tensor
    plain: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return plain


def entering(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """x, which all processes have, and with which each computes its part: its gradient is the sum
    of theirs."""
    mesh = _mesh_of(module)
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    same = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return same.to_local(grad_placements=[Partial()])


def summed(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """The sum over all processes of what each has made of its part."""
    mesh = _mesh_of(module)
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Partial, Replicate

    summands = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return summands.redistribute(placements=[Replicate()]).to_local()


def _mesh_of(module: nn.Module) -> Any:
    """The mesh of a module that is cut; None of one that is whole, or has no weight."""
    return getattr(getattr(module, "weight", None), "device_mesh", None)
