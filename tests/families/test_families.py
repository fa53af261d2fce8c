"""Every family, held against transformers on tiny random checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from families.cases import Case, all_cases
from families.conformance import check, make_truth
from zoo.families.catalogue import Catalogue
from zoo.registry import load_registry

FAMILIES = Catalogue(load_registry()).by_model_type


@pytest.mark.parametrize("case", all_cases().values(), ids=all_cases())
def test_family(case: Case, tmp_path: Path) -> None:
    """The logits are those of transformers, on every input; the export is the checkpoint, byte for
    byte, and transformers makes the same of it; and the config may leave out its defaults."""
    report = check(make_truth(case, tmp_path / "original"), tmp_path)
    assert report.differences
    assert report.faults == []


def test_every_model_type_is_held_against_transformers() -> None:
    assert set(FAMILIES) <= {case.model_type for case in all_cases().values()}
