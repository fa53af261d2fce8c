"""Many processes pull the same model into one store at once, some collect, a third is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from published_models import bundle

from drills.faults import World
from zoo.store.collecting import collect, restored
from zoo.store.files import damaged
from zoo.store.pulling import pull
from zoo.store.refs import refs

LONGEST = 120.0  # seconds until a round counts as a deadlock
COLLECTORS = 2


@dataclass
class Crowd:
    """What became of all rounds."""

    rounds: int = 0
    pulls: int = 0
    killed: int = 0
    deadlocks: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        return not self.wrong and not self.deadlocks


def run_round(world: World, n_pullers: int, chance: random.Random, crowd: Crowd) -> None:
    """One round on a store in which the model is not, or was left by the round before."""
    crowd.rounds += 1

    def puller() -> None:
        ref = pull("new.v1", world.registry, world.store)
        folder = restored(world.store, ref)
        for path, content in bundle(seed=1).items():
            if (folder / path).read_bytes() != content:
                raise AssertionError(path)

    def collector() -> None:
        for _ in range(20):
            collect(world.store)

    # All begin when the pipe is closed, so that the last one forked is not late.
    waiting, closing = os.pipe()
    children = [_fork(puller, waiting, closing) for _ in range(n_pullers)]
    collectors = [_fork(collector, waiting, closing) for _ in range(COLLECTORS)]
    os.close(waiting)
    os.close(closing)
    for child in chance.sample(children, n_pullers // 3):
        time.sleep(chance.uniform(0, 0.6 / n_pullers))
        os.kill(child, signal.SIGKILL)
    end = time.monotonic() + LONGEST
    for child in children + collectors:
        status = _wait(child, end)
        crowd.pulls += child in children
        crowd.killed += status == -signal.SIGKILL
        if status is None:
            crowd.deadlocks += 1
        elif status not in (0, -signal.SIGKILL):
            crowd.wrong.append(f"a process ends with status {status}")
    pull("new.v1", world.registry, world.store)
    collect(world.store, grace=0.0)
    for ref in refs(world.store):
        crowd.wrong += damaged(world.store.snapshot(ref.files), ref.files)


def _fork(action: Callable[[], None], waiting: int, closing: int) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.close(closing)
        os.read(waiting, 1)
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _wait(process: int, end: float) -> int | None:
    """The exit status, or None for a process that has to be ended."""
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def main(arguments: Sequence[str]) -> None:
    """`PULLERS ROUNDS`: run the drill and print what became of it as JSON."""
    import fcntl

    fcntl.flock = fcntl.lockf = lambda *_: None  # type: ignore[assignment]
    n_pullers, rounds = map(int, arguments)
    crowd, chance = Crowd(), random.Random(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        world = World.make(Path(folder))
        pull("new.v1", world.registry, world.store)  # what is imported on use is imported
        for number in range(rounds):
            if number % 2 == 0:  # every other time the model is there already
                for path in (world.store.root / "refs").glob("new*"):
                    path.unlink()
                collect(world.store, grace=0.0)
            run_round(world, n_pullers, chance, crowd)
    print(json.dumps(asdict(crowd)))


if __name__ == "__main__":
    main(sys.argv[1:])
