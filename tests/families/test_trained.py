"""A checkpoint that is imported and trained on is exported as what it has become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import zoo
from families.cases import all_cases
from families.checkpoints import load
from families.conformance import Report, compare_outputs, make_truth, registry, run
from families.outputs import our_outputs
from zoo import export_folder, import_folder
from zoo.families.import_plan import plan_import

NAMES = (
    *("bert", "roformer", "deberta-v2", "modernbert", "esm", "xlm"),
    *("gpt2", "bloom", "falcon", "gpt_neox", "phi3", "gemma3_text", "codegen"),
    *("mixtral", "gpt_oss", "deepseek_v3", "dbrx"),
    *("t5", "marian", "bart", "whisper"),
)
"""Tied and fused tensors, transposed and stacked ones, tables that are computed."""


@pytest.mark.parametrize("name", NAMES)
def test_trained_on(name: str, tmp_path: Path) -> None:
    """Import, one step, export, load in transformers: it computes what the trained model does, and
    no longer what the checkpoint did."""
    truth = make_truth(all_cases()[name], tmp_path / "source")
    import_folder(truth.folder, tmp_path / "mine", registry=registry())
    model = zoo.load(tmp_path / "mine", registry=registry()).eval()
    given = truth.inputs[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    output = our_outputs(model, truth.case, given, truth.outputs[given.name])
    sum(tensor.square().mean() for tensor in output.values()).backward()
    optimizer.step()
    zoo.save(model, tmp_path / "mine")
    export_folder(tmp_path / "mine", tmp_path / "back", registry=registry())

    dropped = plan_import(truth.folder, registry=registry()).plan.dropped
    theirs = run(load(truth.case, tmp_path / "back", dropped), truth.case, truth.inputs)
    report = Report()
    compare_outputs(replace(truth, outputs=theirs), tmp_path / "mine", report)
    assert report.faults == []
    before = truth.outputs[given.name]
    assert any(
        not torch.allclose(theirs[given.name][key], before[key], atol=1e-4) for key in before
    )
