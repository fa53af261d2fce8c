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


def drill(name: str, limit: int) -> Tally:
    return Tally(**json.loads(in_a_process("drills.faults", name, str(limit))))


@pytest.mark.parametrize("name", OURS)
def test_some_faults_do_no_harm(name: str) -> None:
    tally = drill(name, 12)
    assert tally.runs == 12
    assert tally.killed
    assert tally.is_clean, tally


@pytest.mark.drill
@pytest.mark.parametrize("name", OURS)
def test_no_fault_does_harm(name: str) -> None:
    tally = drill(name, 10_000)
    assert tally.runs >= 60
    assert tally.is_clean, tally


@pytest.mark.drill
def test_the_drill_sees_harm_where_there_is_some() -> None:
    """The negative control, which is not atomic, loses and damages models."""
    tally = drill(COMPARISON, 10_000)
    assert tally.lost
    assert tally.torn


def order(name: str) -> tuple[int, list[str]]:
    """Return the number of permanent names that an operation creates, and the errors in the order
    of its calls."""
    return violations(json.loads(in_a_process("drills.faults", "--log", name)))


@pytest.mark.parametrize(("name", "least"), [("save", 1), ("pull", 3), ("push", 1)])
def test_what_gets_its_name_is_on_disk(name: str, least: int) -> None:
    """Every rename follows an fsync of its file, and precedes one of its folder."""
    given, wrong = order(name)
    assert given >= least
    assert wrong == []


def test_the_order_is_seen_to_be_wrong_where_it_is() -> None:
    given, wrong = order(COMPARISON)
    assert given == 1
    assert len(wrong) == 2  # neither the file is synced before the rename, nor the folder after it
