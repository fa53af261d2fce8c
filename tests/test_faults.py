"""Save, pull, push and rm lose no data and leave no partial files, at whatever system call they
fail or are killed.

The drills are in `drills/`; each operation runs in a process that is forked under strace.
"""

from __future__ import annotations

import json

import pytest
from drills import strace
from drills.faults import OPERATIONS, Tally
from drills.order import violations
from drills.process import in_a_process

COMPARISON = "save_file beside a spec"
OURS = [name for name in OPERATIONS if name != COMPARISON]

pytestmark = pytest.mark.skipif(not strace.available(), reason="strace is not here")


def drill(limit: int, *names: str) -> dict[str, Tally]:
    """Return what became of each of these operations, all in one process."""
    told = json.loads(in_a_process("drills.faults", str(limit), *names))
    return {name: Tally(**tally) for name, tally in told.items()}


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    """Return what some faults made of each operation."""
    return drill(12, *OURS)


@pytest.mark.parametrize("name", OURS)
def test_some_faults_do_no_harm(name: str, tallies: dict[str, Tally]) -> None:
    tally = tallies[name]
    assert tally.runs == 12
    assert tally.killed
    assert tally.is_clean, tally


@pytest.mark.drill
@pytest.mark.parametrize("name", OURS)
def test_no_fault_does_harm(name: str) -> None:
    tally = drill(10_000, name)[name]
    assert tally.runs >= 60
    assert tally.is_clean, tally


@pytest.mark.drill
def test_the_drill_sees_harm_where_there_is_some() -> None:
    """The negative control, which is not atomic, loses and damages models."""
    tally = drill(10_000, COMPARISON)[COMPARISON]
    assert tally.lost
    assert tally.torn


@pytest.fixture(scope="module")
def orders() -> dict[str, tuple[int, list[str]]]:
    """Return the number of permanent names that each operation creates, and the errors in the order
    of its calls."""
    logs = json.loads(in_a_process("drills.faults", "--log", *LOGGED, COMPARISON))
    return {name: violations(log) for name, log in logs.items()}


LOGGED = {"save": 1, "pull": 3, "push": 1}
"""Operations, each with the least number of names that it gives."""


@pytest.mark.parametrize(("name", "least"), LOGGED.items())
def test_what_gets_its_name_is_on_disk(
    name: str, least: int, orders: dict[str, tuple[int, list[str]]]
) -> None:
    """Every rename follows an fsync of its file, and precedes one of its folder."""
    given, wrong = orders[name]
    assert given >= least
    assert wrong == []


def test_the_order_is_seen_to_be_wrong_where_it_is(
    orders: dict[str, tuple[int, list[str]]],
) -> None:
    given, wrong = orders[COMPARISON]
    assert given == 1
    assert len(wrong) == 2  # neither the file is synced before the rename, nor the folder after it
