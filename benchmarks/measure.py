"""Times and their ratios. The cases that are compared run in turn, so that other load on the
machine affects all of them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place import CPU, Place

PAUSE = 0.1
"""Seconds to wait before each run, so that the threads of the previous one stop spinning."""

SHORTEST = 0.05
"""The least seconds of a run; shorter calls are repeated within a run."""

MOST_ROUNDS = 25

SECONDS = 0.5
"""The seconds for each round that is asked for, in which more are run if they are short."""

LIMIT = "limit: "
"""How the names of limits begin."""


class Samples(tuple[float, ...]):
    """The seconds of one case in each round."""

    @property
    def median(self) -> float:
        return statistics.median(self)

    def times(self, factor: float) -> Samples:
        """The samples multiplied by `factor`."""
        return Samples(seconds * factor for seconds in self)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of a measurement to that of a peer or a limit.

    Args:
        what: what was measured.
        against: the peer, or the limit.
        seconds: the seconds of each round.
        reference: the seconds of the peer in the same rounds, or a fixed number of seconds.
        target: the most that the ratio should be, if there is a target.
        unit: the unit of both, if it is not seconds.
        tokens: the number of tokens that were computed in that time, where they are counted.
        of_limit: whether the reference is a limit, a share of which was reached.
    """

    what: str
    against: str
    seconds: Samples
    reference: Samples | float
    target: float | None = None
    unit: str = "s"
    tokens: int | None = None
    of_limit: bool = False

    @property
    def of_rounds(self) -> Samples:
        """The ratio in each round."""
        reference = self.reference
        if not isinstance(reference, Samples):
            reference = Samples([reference] * len(self.seconds))
        return Samples(a / b for a, b in zip(self.seconds, reference, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return self.of_rounds.median

    @property
    def met(self) -> bool | None:
        """Whether the ratio is within its target; None if there is no target."""
        return None if self.target is None else self.ratio <= self.target

    def rows(self) -> list[Ratio]:
        return [self]


def timed(call: Callable[[], object], place: Place = CPU) -> Callable[[], float]:
    """Return a function that runs `call` and returns the seconds per call, until the device has
    computed it."""

    def run() -> float:
        calls = 0
        start = time.perf_counter()
        while True:
            call()
            place.wait()
            calls += 1
            # Asked after a call, for a busy machine may pause the process for longer before one.
            if (elapsed := time.perf_counter() - start) >= SHORTEST:
                return elapsed / calls

    return run


def in_turn(
    cases: Mapping[str, Callable[[], float]], rounds: int, seconds: float = 0.0
) -> dict[str, Samples]:
    """Run the cases in turn, after one warm-up round, and return their seconds in each round.

    Args:
        cases: functions, each of which measures one run.
        rounds: the least number of rounds.
        seconds: rounds go on until this time has passed, up to 25 rounds.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    for run in cases.values():
        run()
    start = time.perf_counter()
    number = 0
    while number < rounds or (number < MOST_ROUNDS and time.perf_counter() - start < seconds):
        # Every other round runs backwards, so that no case always follows the same one.
        for name in list(cases)[:: 1 - 2 * (number % 2)]:
            time.sleep(PAUSE)
            found[name].append(cases[name]())
        number += 1
    return {name: Samples(values) for name, values in found.items()}


def compared(
    what: str,
    cases: Mapping[str, Callable[[], float]],
    rounds: int,
    targets: Mapping[str, float | None] | None = None,
    tokens: int | None = None,
) -> list[Ratio]:
    """Measure the cases, and return the ratios of the first to each of the others.

    Args:
        what: a description of the work of all cases.
        cases: the measured case, then its peers, by name.
        rounds: the least number of rounds; more are run if they are short.
        targets: the targets of peers for which it is not 1; None for no target.
        tokens: the number of tokens that each case computes, where they are counted.
    """
    progress(what)
    times = in_turn(cases, rounds, seconds=SECONDS * rounds)
    measured, *peers = cases
    ratios = [
        Ratio(
            what,
            peer,
            times[measured],
            times[peer],
            (targets or {}).get(peer, 1.0),
            tokens=tokens,
            of_limit=peer.startswith(LIMIT),
        )
        for peer in peers
    ]
    told = ", ".join(f"{ratio.ratio:.2f} of {ratio.against}" for ratio in ratios)
    progress(f"{what}: {told}, {len(times[measured])} rounds")
    return ratios


def progress(line: str) -> None:
    """Report the current step on stderr, apart from the table."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def process(arguments: Sequence[str]) -> Callable[[], float]:
    """Return a function that runs a command, which must succeed, and returns its wall time in
    seconds."""

    def run() -> float:
        start = time.perf_counter()
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=_environment())
        return time.perf_counter() - start

    return run


def printed(code: str) -> list[float]:
    """Run Python code, and return the numbers in the last line that it prints: seconds that it
    measured itself."""
    done = subprocess.run(
        python(code), check=True, stdout=subprocess.PIPE, text=True, env=_environment()
    )
    return [float(number) for number in done.stdout.splitlines()[-1].split()]


def of_code(code: str) -> Callable[[], float]:
    """Return a function that runs Python code, and returns the seconds that it prints."""
    return lambda: printed(code)[0]


def _environment() -> dict[str, str]:
    """Return the environment variables as users have them: bytecode is cached, streams are
    buffered."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def python(code: str) -> list[str]:
    """Return the command that runs code in this Python."""
    return [sys.executable, "-c", code]


def zoo_command() -> str:
    """Return the path of the installed `zoo` beside this Python."""
    return str(Path(sys.executable).parent / "zoo")
