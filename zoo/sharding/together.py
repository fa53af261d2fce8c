"""Making the processes of a mesh succeed or fail together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from zoo.errors import Problem, ZooError
from zoo.sharding.mesh import check_member, place_in

Failure = list[tuple[type[ZooError], Problem]]
"""A failure as one process tells it to others: its class with each of its problems; empty if the
process has not failed."""
_TOLD = 1.0  # seconds from one exchange about work that goes on to the next


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
    failed = gathered(failure_of(failure), mesh)
    if failure is not None:
        raise failure
    raise_failure(failed)
    if len(set(gathered([tuple(same)], mesh))) > 1:
        raise ZooError("the processes of the mesh do not all have the same weights and arguments")


def first_of_each_store(work: Callable[[], object], mesh: DeviceMesh) -> None:
    """Do work in the first process of each machine, or of each store on it, while the other
    processes of the mesh wait.

    It may take hours, as a download does. So the processes tell each other all the time whether it
    still goes on: torch gives up an exchange for which one of them waits too long.

    Raises:
        ZooError: as `processes_of`.
    """
    with processes_of(mesh):
        own = (socket.gethostname(), os.environ.get("ZOO_HOME"))
        here = [place for where, place in gathered([(own, place_in(mesh))], mesh) if where == own]
        done: Future[object] = Future()
        if place_in(mesh) != min(here):
            done.set_result(None)
        else:  # a daemon, so that an interrupt ends the process
            Thread(target=_do, args=(work, done), daemon=True).start()
        while not all(gathered([done.done()], mesh)):
            with suppress(TimeoutError):
                done.exception(_TOLD)
        done.result()


def _do(work: Callable[[], object], done: Future[object]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def gathered(own: list[Any], mesh: DeviceMesh) -> list[Any]:
    """The items of all processes of the mesh, including this one."""
    items = own
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, items, group=group)
        items = [item for one in lists for item in one]
    return items


def failure_of(error: Exception | None) -> Failure:
    """The error of this process, as it is sent to the others."""
    if isinstance(error, ZooError):
        return [(type(error), problem) for problem in error.problems]
    if error is None:
        return []
    message = f"another process has failed: {type(error).__name__}: {error}"
    return [(ZooError, Problem(message))]


def raise_failure(failed: Failure) -> None:
    """Raise the error of another process, or of several, if there is one."""
    if failed:
        kind, _ = failed[0]
        raise kind(dict.fromkeys(problem for _, problem in failed))
