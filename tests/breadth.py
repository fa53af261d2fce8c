"""Cases of which `make test` takes an example, and `make slow` all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_then_slow(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: of the first case as it is, of all others as slow ones."""
    first, *others = cases
    return [first, *(slow(case) for case in others)]


def slow(case: Any) -> Any:
    """A case, or one with a name of its own, as a slow one."""
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(case, marks=pytest.mark.slow)
