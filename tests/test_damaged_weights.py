"""Damaged weight files are never loaded, and raise nothing but the zoo's own errors. The drill is
in `drills/damage.py`."""

from __future__ import annotations

import pytest
from drills.damage import run_damage


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=pytest.mark.drill)], ids=["test", "drill"]
)
def test_no_damaged_file_is_loaded(count: int) -> None:
    tally = run_damage(count)
    assert tally.files > 0.9 * count
    assert tally.loaded == 0
    assert tally.plain > count / 100  # otherwise the damage would not be noticeable
