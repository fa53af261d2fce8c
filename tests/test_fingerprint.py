"""Fingerprints exist for every model that reads tokens, and detect a model that computes another
result."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from published_models import LOCAL, bundle, entry, register, write_files

import zoo
from zoo.cli import run
from zoo.publishing.fingerprints import difference, take_fingerprint
from zoo.store.files import Store

SIZES = {"format": 1, "name": "m", "n_layers": 1, "d_model": 8, "n_heads": 2, "d_ff": 16}
SPECS = {
    "encoder": {**SIZES, "builder": "encoder", "vocab": 50},
    "classifier": {**SIZES, "builder": "encoder", "vocab": 50, "head": "linear"},
    "decoder": {**SIZES, "builder": "decoder", "vocab": 50},
    "scores": {**SIZES, "builder": "decoder", "vocab": 50, "head": "linear"},
    "short": {**SIZES, "builder": "encoder", "vocab": 5, "position": "learned", "max_length": 3},
    "pair": {
        **SIZES,
        "builder": "encoder_decoder",
        "source_vocab": 50,
        "target_vocab": 60,
        "head": "linear",
    },
}


@pytest.mark.parametrize("name", SPECS)
def test_a_fingerprint_is_what_the_model_computes(name: str) -> None:
    model = zoo.build(SPECS[name])
    found = take_fingerprint(model)
    assert found is not None
    inputs = [torch.tensor(found.ids)]
    inputs += [] if found.target_ids is None else [torch.tensor(found.target_ids)]
    assert len(inputs) == (2 if name == "pair" else 1)
    with torch.inference_mode():
        output = model.eval()(*inputs)
    assert len(found.at) == len({tuple(index) for index in found.at}) == 6
    place = torch.arange(output.numel()).view(output.shape)[tuple(found.at[-1])]
    assert place >= 5 * output.numel() // 6  # the values are from all of the output
    values = torch.stack([output[tuple(index)] for index in found.at])
    assert values.tolist() == found.values
    assert difference(model, found, name) == 0
    assert difference(zoo.build(SPECS[name], seed=1), found, name) > 100 * found.tolerance


def test_dropout_has_no_part_in_it() -> None:
    model = zoo.build({**SPECS["scores"], "dropout": 0.5}).train()
    found = take_fingerprint(model)
    assert found is not None
    assert difference(model.train(), found, "m") == 0


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_the_tolerance_is_a_share_of_the_largest_value_or_of_1(factor: float) -> None:
    model = zoo.build(SPECS["scores"])
    with torch.no_grad():
        model.head.out.weight *= factor
    found = take_fingerprint(model)
    assert found is not None
    largest = max(map(abs, found.values))
    assert (largest > 10) == (factor > 1)
    assert found.tolerance == pytest.approx(1e-4 * max(1.0, largest))


def test_only_numbers_are_in_it() -> None:
    """Some models, such as Marian, have scores of -inf for some tokens."""
    model = zoo.build({**SPECS["scores"], "head": {"kind": "linear", "logits_bias": True}})
    model.head.logits_bias[::2] = -torch.inf
    found = take_fingerprint(model)
    assert found is not None
    assert all(map(math.isfinite, found.values))
    model.head.logits_bias[:] = -torch.inf
    assert take_fingerprint(model) is None


def test_half_precision_is_computed_in_full() -> None:
    """So that machines with different half-precision arithmetic agree."""
    model = zoo.build(SPECS["scores"], dtype=torch.bfloat16)
    found = take_fingerprint(model)
    assert found is not None
    assert difference(model.float(), found, "m") == 0


def test_a_model_of_no_tokens_has_none() -> None:
    hears = {
        "embedding": {"kind": "conv_frontend", "n_features": 3},
        "position": {"kind": "learned", "max_length": 4},
    }
    spec = {**SIZES, "builder": "encoder_decoder", "target_vocab": 5, "encoder": hears}
    assert take_fingerprint(zoo.build(spec)) is None


def test_an_output_that_is_no_number_is_far_from_all_numbers() -> None:
    model = zoo.build({**SPECS["scores"], "head": {"kind": "linear", "logits_bias": True}})
    found = take_fingerprint(model)
    assert found is not None
    for index in found.at:
        model.head.logits_bias.data.zero_()[index[-1]] = torch.nan
        assert math.isnan(difference(model, found, "m"))


@pytest.mark.parametrize(
    "other", [{"ids": [[50]]}, {"target_ids": [[1]]}, {"at": [[0, 0, 50]] * 6}, {"at": [[0]] * 6}]
)
def test_a_fingerprint_of_another_model_is_told_as_such(other: dict[str, Any]) -> None:
    model = zoo.build(SPECS["decoder"])
    found = take_fingerprint(model)
    assert found is not None
    with pytest.raises(zoo.WeightsError, match="fingerprint of m does not fit the model: "):
        difference(model, found.model_copy(update=other), "m")


def test_a_fingerprint_is_of_one_version(
    project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        write_files(project / "published", bundle(seed))
        found = take_fingerprint(zoo.load("published"))
        assert found is not None
        lines = f"ids = {found.ids}\nat = {found.at}\nvalues = {found.values}\ntolerance = 1e-4\n"
        register(project, "small.v1", f"{entry(LOCAL, bundle(seed))}[fingerprint]\n{lines}")
        assert run(["pull", "small.v1"]) == 0
    capsys.readouterr()
    assert run(["verify", "--fingerprint"]) == 0
    told = capsys.readouterr().out
    assert told.count("no fingerprint is known") == told.count("outputs within 0.0e+00") == 1


@pytest.mark.parametrize(("off", "status"), [(0.0, 0), (1e-3, 2), (math.nan, 2)])
def test_another_output_is_told(
    off: float, status: int, project: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(project / "published", bundle())
    found = take_fingerprint(zoo.load("published"))
    assert found is not None
    values = [value + off for value in found.values]
    lines = f"ids = {found.ids}\nat = {found.at}\nvalues = {values}\ntolerance = 1e-4\n"
    register(project, "small.v1", f"{entry(LOCAL, bundle())}[fingerprint]\n{lines}")
    assert run(["pull", "small.v1"]) == 0
    capsys.readouterr()
    assert run(["verify", "small.v1", "--fingerprint"]) == status
    told = capsys.readouterr().err
    assert ("does not compute what its fingerprint says" in told) is (status == 2)
    assert run(["verify", "small.v1", "--fingerprint", "--json"]) == status

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    (row,) = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert row["right"] is (status == 0)
    distance = None if math.isnan(off) else pytest.approx(off, rel=0.01, abs=1e-6)
    assert row["difference"] == distance
    assert run(["verify", "small.v1"]) == 0
    (snapshot,) = store.snapshots()
    (snapshot / "model.safetensors").unlink()
    capsys.readouterr()
    assert run(["verify", "small.v1", "--fingerprint"]) == 2
    shown = capsys.readouterr()
    assert shown.out.endswith(": damaged: model.safetensors\n")
    assert "help: `zoo pull small.v1` mends it" in shown.err
