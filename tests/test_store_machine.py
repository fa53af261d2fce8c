"""After any sequence of operations on a store, every ref leads to verified bytes."""

from __future__ import annotations

import pytest
from drills.chance import StoreMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

QUICK = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def test_a_few_hundred_steps() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(QUICK, max_examples=12, stateful_step_count=25)
    )


@pytest.mark.drill
def test_ten_thousand_steps() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(QUICK, max_examples=200, stateful_step_count=50)
    )
