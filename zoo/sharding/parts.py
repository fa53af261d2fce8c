"""For modules that are cut (`zoo.layout.Cut`) and get or return something of all heads.

Importing this imports nothing of `torch.distributed`, and a module that is not cut pays nothing.
"""

from __future__ import annotations

import torch


def own_part(tensor: torch.Tensor, dim: int, weight: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that goes with this process' part of a cut module.

    Args:
        tensor: of all processes, the same in each; along `dim` it is as long as all parts together,
            or 1 long, for all of them.
        dim: the dimension that is cut.
        weight: a parameter of the module.

    Returns:
        The part along `dim`; all of it if the module is whole.
    """
    mesh = getattr(weight, "device_mesh", None)
    if mesh is None or tensor.dim() < -dim or tensor.shape[dim] == 1:
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    return whole.redistribute(placements=[Shard(dim % tensor.dim())]).to_local()


def all_parts(tensor: torch.Tensor, dim: int, weight: torch.Tensor) -> torch.Tensor:
    """The opposite: the parts of all processes, one after the other along `dim`."""
    mesh = getattr(weight, "device_mesh", None)
    if mesh is None:
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    parts = DTensor.from_local(tensor, mesh, [Shard(dim % tensor.dim())], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()
