"""Processes that all tests share which need several, since starting them takes long."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """Calls a function in all processes at once."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def __call__(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of a function of a module, one for each process."""
        for pipe in self.pipes:
            pipe.send((function, args))
        told = [pipe.recv() for pipe in self.pipes]
        for failed, result in told:
            assert not failed, result
        return [result for _, result in told]


@contextmanager
def ranks(n_processes: int, folder: Path) -> Iterator[Ranks]:
    """Start `n_processes` processes with one thread each, connected by gloo."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(n_processes)]
    processes = [
        context.Process(target=_work, args=(rank, n_processes, folder / "rendezvous", theirs))
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for process, (_, theirs) in zip(processes, pairs, strict=True):
        process.start()
        theirs.close()  # so that no process waits for one that has died
    try:
        yield Ranks([ours for ours, _ in pairs])
    finally:
        for ours, _ in pairs:
            ours.send(None)
        for process in processes:
            process.join(20)
            process.kill()


def _work(rank: int, n_processes: int, rendezvous: Path, pipe: Connection) -> None:
    of_all = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), n_processes)
    told = {"RANK": rank, "LOCAL_RANK": rank, **of_all, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(number) for name, number in told.items()}  # as torchrun states them
    torch.set_num_threads(1)
    # With a timeout, a test that leaves a process waiting for another fails instead of hanging.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=n_processes,
        timeout=timedelta(seconds=300),  # also for starting, on a busy machine
    )
    while (task := pipe.recv()) is not None:
        function, args = task
        try:
            pipe.send((False, function(*args)))
        except Exception:
            pipe.send((True, traceback.format_exc()))
    dist.destroy_process_group()
