"""Whose processor it is, as Linux and Windows tell."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from zoo.machine import processor

INTEL = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Processor
flags		: fpu avx512f

processor	: 1
vendor_id	: Other
model name	: Other
"""
AMD = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 9B45: Turin
"""
ARM = """\
processor	: 0
BogoMIPS	: 50.00
"""


@pytest.mark.parametrize(
    ("text", "name", "intels"),
    [
        (INTEL, "Intel(R) Xeon(R) Processor", True),
        (AMD, "AMD EPYC 9B45: Turin", False),
        (ARM, platform.machine(), False),
    ],
)
def test_linux(
    text: str, name: str, intels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert (processor.name(), processor.is_intel()) == (name, intels)


@pytest.mark.parametrize(
    ("identifier", "intels"),
    [
        ("Intel64 Family 6 Model 154 Stepping 3, GenuineIntel", True),
        ("AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD", False),
        (None, False),
    ],
)
def test_without_linux(
    identifier: str | None, intels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows tells by a variable; macOS tells nothing, and torch is built for Apple's alone."""
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "missing")
    monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
    if identifier is not None:
        monkeypatch.setenv("PROCESSOR_IDENTIFIER", identifier)
    assert (processor.name(), processor.is_intel()) == (platform.machine(), intels)
