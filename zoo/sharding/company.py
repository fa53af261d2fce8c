"""Processes that generate for rows of their own, with weights that they fetch together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from zoo.transformer import Transformer


class Company:
    """The processes of a generation. In each step they fetch the weights of each layer together, so
    that none may end while another goes on.

    Args:
        mesh: the processes.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def goes_on(self, *, here: bool) -> bool:
        """Whether some process does another step. All of them call this before each, with whether
        this one does."""
        told = torch.tensor(here, device=self.mesh.device_type, dtype=torch.int32)
        for dim in range(self.mesh.ndim):
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self.mesh.get_group(dim))
        return here or bool(told)  # waits for a device only where nothing is to be done


def company_of(model: Transformer) -> Company | None:
    """The processes over which FSDP2 has spread the weights of a model; None if it has not."""
    sharded = (module for module in model.modules() if isinstance(module, FSDPModule))
    weights = (weight for module in sharded for weight in module.parameters())
    mesh = next((one.device_mesh for one in weights if isinstance(one, DTensor)), None)
    return None if mesh is None else Company(mesh)
