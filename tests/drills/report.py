"""Runs all drills in full and writes docs/reliability.md: `make reliability`. It takes a while."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from drills.chance import StoreMachine
from drills.corpus import run_corpus
from drills.crowd import Crowd
from drills.damage import run_damage
from drills.faults import OPERATIONS, Tally
from drills.order import violations
from drills.process import ROOT, in_a_process

DAMAGED = 100_000
PULLERS, ROUNDS = 32, 20
EXAMPLES, STEPS = 200, 50

HEAD = """# Reliability

What the drills found. Written by `make reliability`; the drills are in `tests/drills/`, and
`make drill` fails if one of them finds harm.

## A fault at every system call

Each operation is run once for each of its system calls that touch files, with a fault in that call:
the process is killed (SIGKILL), the call fails (EIO), or the disk is full from there on (ENOSPC).
*Lost* is a model that was there and is not any more; *torn* one whose files do not belong together
or are not whole; *left* what is still there after `zoo gc`. A run that was refused has told an
error. The last row is what people write without a zoo: a spec
file, and beside it weights by safetensors' `save_file`.

| operation | runs | killed | refused | done all the same | lost | torn | left |
|---|---:|---:|---:|---:|---:|---:|---:|
"""


def main() -> None:
    """Run everything and write the page."""
    (ROOT / "docs" / "reliability.md").write_text("".join(page()))


def page() -> Iterator[str]:
    """The parts of the page."""
    yield HEAD
    for name in OPERATIONS:
        tally = Tally(**json.loads(in_a_process("drills.faults", "100000", name))[name])
        yield fault_row(name, tally)
    yield order_text([(name, *order(name)) for name in ("save", "pull", "push")])
    yield crowd_text(Crowd(**json.loads(in_a_process("drills.crowd", str(PULLERS), str(ROUNDS)))))
    yield chance_text()
    yield damage_text()
    yield corpus_text()
    yield bench_text()
    yield f"\nMeasured with Python {platform.python_version()} on {sys.platform}.\n"


def fault_row(name: str, tally: Tally) -> str:
    counts = (tally.runs, tally.killed, tally.refused, tally.done)
    found = (len(tally.lost), len(tally.torn), len(tally.left))
    return f"| {name} | {' | '.join(map(str, (*counts, *found)))} |\n"


def order(name: str) -> tuple[int, int]:
    given, wrong = violations(json.loads(in_a_process("drills.faults", "--log", name))[name])
    return given, len(wrong)


def order_text(found: list[tuple[str, int, int]]) -> str:
    told = "; ".join(f"{name}: {given} names, {wrong} violations" for name, given, wrong in found)
    return f"""
## What is named is on disk

A trace of the system calls is held against one rule: a file or folder gets a name that lasts only
once all of it is synced, and the folder that holds the name is synced before the next name is
given. {told}.
"""


def crowd_text(crowd: Crowd) -> str:
    return f"""
## Many at one store

{PULLERS} processes pull the same model into one store at once, while others collect, and a third is
killed; {crowd.rounds} rounds, with file locks made to do nothing. Of {crowd.pulls} pulls
{crowd.killed} were killed. Pulls that failed or gave wrong bytes: {len(crowd.wrong)}. Deadlocks:
{crowd.deadlocks}.
"""


def chance_text() -> str:
    options = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(StoreMachine, settings=options)
    return f"""
## Whatever is done, in whatever order

{EXAMPLES} chains of {STEPS} steps chosen by chance, {EXAMPLES * STEPS:,} in all: models are
published, changed at their source, pulled, broken off, removed, forgotten, damaged, collected.
After each step every ref in the store led to the bytes that it names.
"""


def damage_text() -> str:
    tally = run_damage(DAMAGED)
    return f"""
## Damaged weights

A weights file is damaged at random, in its header and in its tensors. Of {tally.files:,} damaged
files the zoo loaded {tally.loaded}, and refused the others with its own error. Plain safetensors
loaded {tally.plain:,} of them, which is {tally.plain / tally.files:.0%}, and said nothing.
"""


def corpus_text() -> str:
    with tempfile.TemporaryDirectory() as folder:
        results = run_corpus(Path(folder))
    kinds = Counter(result["kind"] for result in results)
    touched = sum(bool(result["touched"]) for result in results)
    accepted = [result for result in results if not result["outcome"].startswith("refused")]
    harmful = sum(not result["inert"] for result in accepted)
    told = ", ".join(f"{n} of the kind `{kind}`" for kind, n in kinds.items())
    return f"""
## What is written to do harm

Of {len(results)} hostile cases ({told}),
{touched} imported, opened, reached or wrote anything that they should not, and {harmful} were
accepted that are not harmless as they stand. What they try is in [the trust model](security.md).
"""


def bench_text() -> str:
    command = [sys.executable, "-m", "benchmarks", "load", "store"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return f"""
## How long it takes

Times over those of a peer or a limit in the same run, by `python -m benchmarks load store`: of
loading a model of the size of GPT-2 small, from a file and from the store, and of listing 100,000
named models.

{done.stdout}"""


if __name__ == "__main__":
    main()
