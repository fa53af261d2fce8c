"""A fault at every system call of save, pull, push and rm: nothing is lost, nothing torn, and
nothing left behind.

For comparison, what people write without a zoo: `save_file` beside a spec file.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from published_models import LOCAL, SPEC, bundle, entry, register, weights, write_files

import zoo
from drills.strace import CRASHED, Fault, Run, faults_of, traced
from zoo.errors import ZooError
from zoo.publishing.pushing import push
from zoo.registry import Registry, read_layers, shipped_registry
from zoo.saving import save
from zoo.store.collecting import collect, sweep
from zoo.store.files import Store, damaged
from zoo.store.pulling import pull
from zoo.store.refs import refs, remove_ref


@dataclass
class Tally:
    """What became of the runs of one operation."""

    runs: int = 0
    killed: int = 0
    refused: int = 0
    done: int = 0
    lost: list[str] = field(default_factory=list[str])
    torn: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    crashed: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.torn or self.left or self.crashed)


@dataclass(frozen=True)
class World:
    """A folder with a registry, a published model `new.v1`, and a store with `old.v1`."""

    folder: Path

    @property
    def store(self) -> Store:
        return Store(self.folder / "home")

    @property
    def registry(self) -> Registry:
        return read_layers([shipped_registry(), self.folder / "registry.toml"])

    @classmethod
    def make(cls, folder: Path) -> World:
        write_files(folder / "old", bundle(seed=0))
        write_files(folder / "published", bundle(seed=1))
        register(folder, "old.v1", entry({"kind": "local", "path": "../old"}, bundle(seed=0)))
        register(folder, "new.v1", entry(LOCAL, bundle(seed=1)))
        world = cls(folder)
        pull("old.v1", world.registry, world.store)
        return world


class Operation:
    """Something that writes, and what must hold after it was disturbed."""

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(self) -> Callable[[], object]:
        """What is to be run; whatever it needs is loaded."""
        raise NotImplementedError

    def check(self, tally: Tally, what: str) -> None:
        """Note what is lost, torn or left."""
        store = self.world.store
        names: set[str] = set()
        try:
            for ref in refs(store):
                names.add(ref.name)
                if wrong := list(damaged(store.snapshot(ref.files), ref.files)):
                    tally.torn.append(f"{what}: {ref.name}: {wrong}")
        except ZooError as error:
            tally.torn.append(f"{what}: {error}")
        if "old.v1" not in names:
            tally.lost.append(f"{what}: old.v1")
        collect(store, grace=0.0)
        expected = {store.blob(file.sha256) for ref in refs(store) for file in ref.files.values()}
        for ref in refs(store):
            expected |= {store.snapshot(ref.files) / path for path in ref.files}
            expected.add(store.root / "refs" / f"{ref.name}@{ref.version}.json")
        found = {path for path in store.root.rglob("*") if not path.is_dir()}
        tally.left += [f"{what}: {path}" for path in sorted(found - expected)]
        if missing := sorted(path for path in expected - found if "snapshots" in path.parts):
            tally.lost.append(f"{what}: {missing}")


class Pull(Operation):
    def prepare(self) -> Callable[[], object]:
        return partial(pull, "new.v1", self.world.registry, self.world.store)


class Remove(Operation):
    """Removes `new.v1`, and collects."""

    def prepare(self) -> Callable[[], object]:
        store = self.world.store
        ref = pull("new.v1", self.world.registry, store)

        def remove() -> None:
            remove_ref(store, ref.name, ref.version)
            collect(store, grace=0.0)

        return remove


class Push(Operation):
    """To a folder, which has all files or is not there."""

    def prepare(self) -> Callable[[], object]:
        world = self.world
        return partial(
            push,
            world.folder / "published",
            str(world.folder / "shared" / "new"),
            world.registry,
            world.store,
            "CC0-1.0",
        )

    def check(self, tally: Tally, what: str) -> None:
        super().check(tally, what)
        shared = self.world.folder / "shared"
        target = shared / "new"
        if target.exists():
            files = {path: target / path for path in bundle(seed=1)}
            whole = all(file.is_file() for file in files.values()) and all(
                file.read_bytes() == bundle(seed=1)[path] for path, file in files.items()
            )
            if not whole:
                tally.torn.append(f"{what}: {sorted(path.name for path in target.iterdir())}")
        if shared.exists():
            sweep(shared, grace=0.0)
            others = sorted(path.name for path in shared.iterdir() if path != target)
            tally.left += [f"{what}: {name}" for name in others]


class Save(Operation):
    """Over another model's file, which is the old or the new one, whole."""

    def prepare(self) -> Callable[[], object]:
        folder = self.world.folder / "models_here"
        write_files(folder, {"model.safetensors": weights(0)})
        model = zoo.load(self.world.folder / "published")
        return partial(save, model, folder / "model.safetensors")

    def check(self, tally: Tally, what: str) -> None:
        super().check(tally, what)
        folder = self.world.folder / "models_here"
        sweep(folder, grace=0.0)
        found = folder / "model.safetensors"
        if not found.is_file():
            tally.lost.append(what)
        elif found.read_bytes() not in (weights(0), weights(1)):
            tally.torn.append(what)
        others = sorted(path.name for path in folder.iterdir() if path != found)
        tally.left += [f"{what}: {name}" for name in others]


class PlainSave(Operation):
    """For comparison: a spec file and, beside it, weights by the safetensors library."""

    def prepare(self) -> Callable[[], object]:
        from safetensors.torch import save_file

        folder = self.world.folder / "plain"
        folder.mkdir()
        tensors = [zoo.load(self.world.folder / name).state_dict() for name in ("old", "published")]
        names = [f"{SPEC}# version {version}\n" for version in range(2)]
        whole = [folder / f"whole{version}" for version in range(2)]
        for path, values in zip(whole, tensors, strict=True):
            save_file(values, path)
        self.contents = [path.read_bytes() for path in whole]
        self.specs = names

        def write(version: int) -> None:
            (folder / "spec.toml").write_text(names[version])
            save_file(tensors[version], folder / "model.safetensors")

        write(0)
        return partial(write, 1)

    def check(self, tally: Tally, what: str) -> None:
        folder = self.world.folder / "plain"
        spec, file = ((folder / n).read_bytes() for n in ("spec.toml", "model.safetensors"))
        specs = [text.encode() for text in self.specs]
        if spec not in specs or file not in self.contents:
            tally.lost.append(what)
        elif specs.index(spec) != self.contents.index(file):
            tally.torn.append(what)


OPERATIONS: dict[str, type[Operation]] = {
    "save": Save,
    "pull": Pull,
    "push": Push,
    "rm": Remove,
    "save_file beside a spec": PlainSave,
}


def run_drill(
    name: str, folder: Path, choose: Callable[[Sequence[Fault]], Sequence[Fault]]
) -> Tally:
    """Run an operation with each of the faults that `choose` takes from all there are."""
    tally = Tally()
    # Once without tracing, so that what is imported on use is imported; once to count the calls.
    _make(name, folder / "warm").prepare()()
    log = disturbed(name, folder / "counted", None)[1].log
    for number, fault in enumerate(choose(faults_of(log))):
        here = folder / str(number)
        operation, run = disturbed(name, here, fault)
        what = f"{fault.kind} in {fault.call} {fault.number}"
        tally.runs += 1
        tally.killed += run.status == -signal.SIGKILL
        if run.status == -signal.SIGTERM:
            tally.crashed.append(f"{what}: it hangs")
        tally.refused += run.status == 2
        tally.done += run.status == 0
        if run.status == CRASHED:
            tally.crashed.append(f"{what}: {run.error}")
        operation.check(tally, what)
        shutil.rmtree(here)
    return tally


def disturbed(name: str, folder: Path, fault: Fault | None) -> tuple[Operation, Run]:
    operation = _make(name, folder)
    return operation, traced(operation.prepare(), folder, fault)


def _make(name: str, folder: Path) -> Operation:
    with contextlib.chdir(folder.parent):
        return OPERATIONS[name](World.make(folder))


def main(arguments: Sequence[str]) -> None:
    """`LIMIT NAME...`: run the drill of each operation with at most `LIMIT` faults, chosen by
    chance but always the same, and print their tallies by name as JSON. `--log NAME...`: print what
    strace writes of each."""
    how, *names = arguments
    answer: Callable[[str], object] = _logged
    if how != "--log":
        answer = partial(_drilled, limit=int(how))
    print(json.dumps({name: answer(name) for name in names}))


def _logged(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        _make(name, Path(folder) / "warm").prepare()()
        return disturbed(name, Path(folder) / "world", None)[1].log


def _drilled(name: str, limit: int) -> dict[str, Any]:
    def choose(faults: Sequence[Fault]) -> Sequence[Fault]:
        return random.Random(0).sample(faults, min(limit, len(faults)))

    with tempfile.TemporaryDirectory() as folder:
        return asdict(run_drill(name, Path(folder), choose))


if __name__ == "__main__":
    main(sys.argv[1:])
