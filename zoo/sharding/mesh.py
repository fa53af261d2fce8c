"""The meaning of the named dimensions of a device mesh."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh

from zoo.errors import ZooError
from zoo.machine.devices import usable_device
from zoo.wording import did_you_mean

DATA = ("fsdp", "dp")
TENSOR = "tp"


class Meshes(NamedTuple):
    """The dimensions of a mesh.

    Args:
        data: the processes that shard each tensor and compute different rows of a batch.
        tensor: the processes that split the heads and hidden units and compute the same rows.
    """

    data: DeviceMesh | None
    tensor: DeviceMesh | None


def meshes_of(mesh: DeviceMesh) -> Meshes:
    """The dimensions `fsdp` (or `dp`) and `tp` of a mesh.

    Raises:
        ZooError: a dimension has no name, or a different name.
    """
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    known = (*DATA, TENSOR)
    help_ = 'name them, such as `init_device_mesh("cuda", (2, 4), mesh_dim_names=("fsdp", "tp"))`'
    for name in names:
        if not name:
            raise ZooError("the dimensions of the mesh have no names", help=help_)
        if name not in known:
            message = f"a mesh has the dimensions `fsdp` (or `dp`) and `tp`, not `{name}`"
            raise ZooError(message, help=did_you_mean(name, known, help_))
    data = [name for name in names if name in DATA]
    if len(data) > 1:
        message = "`fsdp` and `dp` are two names for the same: a mesh has one of them"
        raise ZooError(message, help=help_)
    return Meshes(
        data=mesh[data[0]] if data else None,
        tensor=mesh[TENSOR] if TENSOR in names else None,
    )


def check_member(mesh: DeviceMesh) -> None:
    """Raise `ZooError` if this process is not in the mesh."""
    if mesh.get_coordinate() is None:
        raise ZooError("this process is not in the mesh")


def place_in(mesh: DeviceMesh) -> int:
    """The index of this process in the mesh, from 0."""
    number = 0
    for size, at in zip(mesh.shape, mesh.get_coordinate() or (), strict=True):
        number = number * size + at
    return number


def device_in(mesh: DeviceMesh, device: str | torch.device | None) -> torch.device:
    """The device of this process: `device`, or that of the mesh if it is None.

    Raises:
        ZooError: the mesh has devices of another type, this process is not in it, or the device
            cannot be used.
    """
    check_member(mesh)
    if device is not None:
        found = usable_device(device)
        if found.type != mesh.device_type:
            message = f"the processes of the mesh compute on {mesh.device_type}, not on {device}"
            raise ZooError(message, help="leave out `device`")
        return found
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.accelerator.current_device_index())
