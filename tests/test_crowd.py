"""Many processes that use one store at once: each gets the right bytes, and none waits forever.

The zoo takes no file locks; the drill disables them all the same.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from drills.crowd import Crowd
from drills.process import in_a_process

ROOT = Path(__file__).parent.parent


def drill(n_pullers: int, rounds: int) -> Crowd:
    return Crowd(**json.loads(in_a_process("drills.crowd", str(n_pullers), str(rounds))))


def test_a_few_pull_at_once() -> None:
    crowd = drill(6, 2)
    assert crowd.pulls == 12
    assert crowd.is_clean, crowd


@pytest.mark.drill
def test_a_crowd_pulls_at_once_and_a_third_is_killed() -> None:
    crowd = drill(32, 20)
    assert crowd.pulls == 640
    assert crowd.killed >= 100
    assert crowd.is_clean, crowd


def test_no_lock_is_taken() -> None:
    """Not every shared disk has locks, so the store must not depend on them. Only a run of training
    takes one, against a second run in its folder, and goes on where there are none."""
    locks = "flock|lockf|filelock|fcntl"
    found = subprocess.run(
        ["grep", "-rnE", locks, "zoo", "plugins", "--include=*.py", "--exclude-dir=training"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
