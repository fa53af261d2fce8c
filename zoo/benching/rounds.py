"""The runs of all models in turn, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from zoo.benching.machine import wait_for
from zoo.benching.memory import Meter, peaks
from zoo.benching.tasks import RUNS, Phase, Run, Sizes, Task
from zoo.errors import PluginError, is_out_of_memory
from zoo.registering.plugin_errors import plugin_code
from zoo.spec import ModelSpec
from zoo.transformer import Transformer

SHORTEST = 0.1
"""The least seconds that are timed; a shorter run is repeated, and the mean is taken."""

OUT_OF_MEMORY = "out of memory"


@dataclass
class Case:
    """A task of a model.

    Args:
        name: the name of the model.
        spec: its spec.
        model: the model; None if there was no memory for it.
        task: the task.
        phases: the phases of the task.
        sizes: the sizes of the inputs.
        device: where it computes.

    Attributes:
        seconds: of each round, the seconds of each phase of a run.
        memory: the bytes at the peak of each phase, if they can be counted.
        error: why it could not be measured.
    """

    name: str
    spec: ModelSpec
    model: Transformer | None
    task: Task
    phases: Sequence[Phase]
    sizes: Sizes
    device: torch.device
    seconds: list[list[float]] = field(default_factory=list[list[float]])
    memory: list[int | None] = field(default_factory=list[int | None])
    error: str | None = None
    _run: Run | None = None
    _times: int = 1

    def warm_up(self, meter: Meter | None) -> None:
        """Run a few times, and see how much memory and about how long a run takes."""
        if self.model is None:
            self.error = OUT_OF_MEMORY
            return
        make = RUNS[self.task]
        with self._within_memory():
            for _ in make(self.model, self.sizes)():  # libraries allocate what they keep
                pass
            self._run = make(self.model, self.sizes)
            self.memory = peaks(self._run, meter)
            self._times = max(1, math.ceil(SHORTEST / sum(self._timed(self._run))))

    def time(self) -> None:
        """Measure a round, unless there was no memory before."""
        if self._run is not None:
            with self._within_memory():
                self.seconds.append(self._timed(self._run))

    def _timed(self, run: Run) -> list[float]:
        phases = [0.0] * len(self.phases)
        wait_for(self.device)
        last = time.perf_counter()
        for _ in range(self._times):
            for number, _ in enumerate(run()):
                wait_for(self.device)
                now = time.perf_counter()
                phases[number] += now - last
                last = now
        return [seconds / self._times for seconds in phases]

    @contextmanager
    def _within_memory(self) -> Generator[None]:
        """Note it if the block runs out of memory, and end the case."""
        try:
            with plugin_code(f"measuring {self.name}"):
                yield
        except PluginError as error:
            if not is_out_of_memory(error.__cause__):
                raise
            self.error = OUT_OF_MEMORY
        if self.error is not None:
            self.end()

    def end(self) -> None:
        """Free the memory of the run, its gradients and its optimiser."""
        self._run = None
        if self.model is not None:
            self.model.zero_grad()
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()


def measure(
    cases: Sequence[Case], *, rounds: int, meter: Meter | None, on_step: Callable[[], None]
) -> None:
    """Warm every case up, then measure all of them in turn, round by round. `on_step` is called
    after each case of each of the `1 + rounds`."""
    for case in cases:
        case.warm_up(meter)
        on_step()
    for number in range(rounds):
        # Every other round runs backwards, so that no case always follows the same one.
        for case in cases[:: 1 - 2 * (number % 2)]:
            case.time()
            on_step()
    for case in cases:
        case.end()
