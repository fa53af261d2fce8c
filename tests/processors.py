"""Processors of other makers than the one that tests run on."""

from __future__ import annotations

import pytest


def taken_for(monkeypatch: pytest.MonkeyPatch, *, intel: bool) -> None:
    """Choose products as on a processor with AVX-512 that is Intel's, or is not."""
    for module in ("zoo.linear", "zoo.machine.prepacking"):
        monkeypatch.setattr(f"{module}.INTEL", intel)
    monkeypatch.setattr("zoo.linear.AVX2_ONLY", False)
    monkeypatch.setattr("zoo.linear.AS_STORED", 16 if intel else 1)
    monkeypatch.setattr("zoo.machine.prepacking.MKL_ROWS", 3 if intel else 0)
    monkeypatch.setattr("zoo.machine.prepacking.FEWEST_ROWS", 1 if intel else 6)
