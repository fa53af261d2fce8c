"""Making the processes of a mesh succeed or fail together."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from zoo.errors import Problem, ZooError
from zoo.sharding.mesh import check_member


@contextmanager
def processes_of(mesh: DeviceMesh) -> Generator[list[str]]:
    """Make the body, which each process of the mesh runs, fail in all processes if it fails in one,
    so that none waits for a process that has given up. The body must put the same items into the
    list in all processes.

    Raises:
        ZooError: the errors of the other processes, of the same class; the lists differ; or this
            process is not in the mesh.
    """
    check_member(mesh)
    failure: Exception | None = None
    same: list[str] = []
    try:
        yield same
    except Exception as error:
        failure = error
    failed = gathered(_told(failure), mesh)
    if failure is not None:
        raise failure
    if failed:
        kind, _ = failed[0]
        raise kind(dict.fromkeys(problem for _, problem in failed))
    if len(set(gathered([tuple(same)], mesh))) > 1:
        raise ZooError("the processes of the mesh do not all have the same weights and arguments")


def gathered(own: list[Any], mesh: DeviceMesh) -> list[Any]:
    """The items of all processes of the mesh, including this one."""
    items = own
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, items, group=group)
        items = [item for one in lists for item in one]
    return items


def _told(error: Exception | None) -> list[tuple[type[ZooError], Problem]]:
    """The error as sent to the other processes: its class with each of its problems."""
    if isinstance(error, ZooError):
        return [(type(error), problem) for problem in error.problems]
    if error is None:
        return []
    message = f"another process has failed: {type(error).__name__}: {error}"
    return [(ZooError, Problem(message))]
