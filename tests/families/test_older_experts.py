"""Experts as versions 4 of transformers saved them, and as those of Qwen3-VL are published: their
maps are (in, out)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from families.cases import all_cases
from families.checkpoints import read_config, write_config
from families.conformance import Report, compare_outputs, make_truth, registry

CASE = all_cases()["qwen3_vl_moe"]


def turned(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, with the maps of its experts as (in, out)."""
    return {
        key: tensor.mT.contiguous() if ".experts." in key else tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
    }


def test_experts_of_older_files(tmp_path: Path) -> None:
    truth = make_truth(CASE, tmp_path / "original")
    tensors = turned(truth.folder)
    save_file(tensors, truth.folder / "model.safetensors", metadata={"format": "pt"})
    config = {**read_config(truth.folder), "transformers_version": "4.57.0.dev0"}
    config["text_config"]["num_experts"] = config["text_config"].pop("num_local_experts")
    write_config(truth.folder, config)
    zoo.import_folder(truth.folder, tmp_path / "m", name="tiny", registry=registry())
    report = Report()
    compare_outputs(truth, tmp_path / "m", report)
    assert report.differences
    assert report.faults == []
    zoo.export_folder(tmp_path / "m", tmp_path / "back", registry=registry())
    found = (tmp_path / "back" / "model.safetensors").read_bytes()
    assert found == (truth.folder / "model.safetensors").read_bytes()


def test_a_version_that_is_not_theirs_is_told(tmp_path: Path) -> None:
    truth = make_truth(CASE, tmp_path / "original")
    tensors = turned(truth.folder)
    save_file(tensors, truth.folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(zoo.WeightsError, match=r"gate_up_proj` is \[6, 48, 40\]: .* does not fit"):
        zoo.import_folder(truth.folder, tmp_path / "m", name="tiny", registry=registry())
