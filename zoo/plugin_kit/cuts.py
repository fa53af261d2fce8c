"""The promise of the cuts of a component (`zoo.layout.Cut`): processes that each have a part of the
module compute the same as the whole module. Two processes try it (`cut_worker.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from zoo.layout import Cut, Layout, Tensor
from zoo.plugin_kit.driver import PromiseError
from zoo.registry import Registry
from zoo.spec import ModelSpec

N_PROCESSES = 2


class Processes:
    """Two processes that wait for specs to try; they are started at the first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: list[subprocess.Popen[str]] = []

    def keep(self, spec: ModelSpec, registry: Registry) -> None:
        """Raises PromiseError unless the model of a spec computes the same when it is cut."""
        check_stated(spec.model.layout())
        if any((cut.units or N_PROCESSES) % N_PROCESSES for _, cut in spec.layout.cuts()):
            return  # such as 3 heads, which cannot be divided among the processes
        task = {
            "spec": spec.to_dict(),
            "plugins": [
                [slot, kind, entry.target, str(entry.folder.resolve())]
                for slot, kinds in registry.plugins.items()
                for kind, entry in kinds.items()
            ],
        }
        if not self._running:
            self._start()
        for process in self._running:
            print(json.dumps(task), file=_pipe(process.stdin), flush=True)
        answers = [_answer(process) for process in self._running]
        failures = [answer for answer in answers if answer is not None]
        ended = any(process.poll() is not None for process in self._running)
        if ended or len(set(answers)) > 1:
            self.stop()  # one may still wait for a message of the other
        if failures:
            raise PromiseError(failures[0])

    def _start(self) -> None:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-m", "zoo.plugin_kit.cut_worker", str(N_PROCESSES)]
        self._running = [
            subprocess.Popen(
                [*command, str(rank), str(Path(folder, "rendezvous"))],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(N_PROCESSES)
        ]

    def stop(self) -> None:
        """End the processes, if there are any."""
        for process in self._running:
            process.kill()
            process.communicate()
        self._running = []
        self._stack.close()


@contextmanager
def started_when_needed() -> Iterator[Processes]:
    """Yield processes that are stopped at the end of the `with` block."""
    found = Processes()
    try:
        yield found
    finally:
        found.stop()


def _answer(process: subprocess.Popen[str]) -> str | None:
    """Return the failure that this process reports; None if it succeeded."""
    line = _pipe(process.stdout).readline()
    if not line:
        return f"a process that computes with its parts ended with status {process.wait()}"
    answer: str | None = json.loads(line)
    return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def check_stated(layout: Layout) -> None:
    """Raises PromiseError unless each cut names tensors that exist and axes that they have, and the
    axes can be divided into whole units."""
    of_modules: dict[str, dict[str, Tensor]] = {}
    for full, tensor in layout.tensors():
        module, _, key = full.rpartition(".")
        of_modules.setdefault(module, {})[key] = tensor
    for name, cut in layout.cuts():
        tensors = of_modules.get(name, {})
        if cut.axes and tensors and tensors.keys().isdisjoint(cut.axes):
            raise PromiseError(
                f"the cut of `{name}` names {', '.join(cut.axes)}, and its tensors are "
                f"{', '.join(tensors)}"
            )
        for key in tensors.keys() & cut.axes.keys():
            _check_axis(f"the cut of `{name}`", key, tensors[key], cut)


def _check_axis(what: str, tensor: str, found: Tensor, cut: Cut) -> None:
    axis = cut.axes[tensor]
    if not -len(found.shape) <= axis < len(found.shape):
        raise PromiseError(
            f"{what} is along axis {axis} of `{tensor}`, whose shape is {found.shape}"
        )
    if cut.units is not None and found.shape[axis] % cut.units:
        raise PromiseError(
            f"{what} spreads {cut.units} units over axis {axis} of `{tensor}`, which has "
            f"{found.shape[axis]} elements there: not as many for each unit\n"
            "help: is it the other axis? A weight is (outputs, inputs)"
        )
