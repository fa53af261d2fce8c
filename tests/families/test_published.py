"""Tensors as they were published, which transformers reads and no longer writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import zoo
from families.cases import all_cases
from families.checkpoints import load, make_model, save
from families.conformance import Truth, check, make_truth, registry, run
from families.inputs import make_inputs
from families.outputs import taken
from zoo import export_folder, import_folder
from zoo.errors import WeightsError

ESM = all_cases()["esm"]
BEFORE = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"


def esm_2(folder: Path) -> dict[str, Tensor]:
    """Write ESM-2 as Meta's checkpoints hold it: frequencies rounded to float16, once for each
    layer, and a table of positions that nothing reads. Return its tensors."""
    save(make_model(ESM), ESM, folder)
    tensors = load_file(folder / "model.safetensors")
    frequencies = tensors.pop(BEFORE.format("*")).half().float()
    for layer in range(2):
        tensors[BEFORE.format(layer)] = frequencies.clone()
    tensors["esm.embeddings.position_embeddings.weight"] = torch.ones(64, 48)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return tensors


def test_frequencies_of_esm_2_are_those_that_it_was_trained_with(tmp_path: Path) -> None:
    """transformers takes them from the checkpoint; computed ones would be others by up to 5e-4 of
    their size. The export gives them back, layer by layer."""
    esm_2(tmp_path / "original")
    model = load(ESM, tmp_path / "original")
    inputs = tuple(make_inputs(ESM, model.config, taken(model)))
    truth = Truth(ESM, tmp_path / "original", inputs, run(model, ESM, inputs))
    report = check(truth, tmp_path)
    assert report.differences
    assert report.faults == []


def test_frequencies_that_differ_among_layers_are_refused(tmp_path: Path) -> None:
    tensors = esm_2(tmp_path / "original")
    tensors[BEFORE.format(1)][2] += 1e-3
    save_file(tensors, tmp_path / "original" / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"layer\.1\..*inv_freq.* must be the same as"):
        import_folder(tmp_path / "original", tmp_path / "imported", registry=registry())


def test_sinusoids_may_be_stored_in_half_precision(tmp_path: Path) -> None:
    """They are those that the model computes, rounded."""
    case = all_cases()["pegasus"]
    save(make_model(case).bfloat16(), case, tmp_path / "original")
    import_folder(tmp_path / "original", tmp_path / "imported", registry=registry())
    table = zoo.load(tmp_path / "imported").get_submodule("encoder.embed.positions").table
    stored = load_file(tmp_path / "original" / "model.safetensors")
    assert torch.equal(table, stored["model.encoder.embed_positions.weight"])


@pytest.mark.parametrize("under_images", [False, True])
def test_what_an_older_trocr_kept_beside_sinusoids_is_dropped(
    tmp_path: Path, under_images: bool
) -> None:
    """A buffer of transformers 4 that says only where, and in which dtype, the table is made."""
    case = all_cases()["vision-encoder-decoder.trocr" if under_images else "trocr"]
    where = "decoder." if under_images else ""
    sinusoids = {"use_learned_position_embeddings": False}
    config = dict(case.config)
    config |= {"decoder": config["decoder"] | sinusoids} if under_images else sinusoids
    save(make_model(replace(case, config=config)), case, tmp_path / "original")
    file = tmp_path / "original" / "model.safetensors"
    name = f"{where}model.decoder.embed_positions._float_tensor"
    save_file({**load_file(file), name: torch.zeros(1)}, file, {"format": "pt"})
    import_folder(tmp_path / "original", tmp_path / "imported", registry=registry())
    zoo.load(tmp_path / "imported")


@pytest.mark.parametrize("model_type", ["deberta", "deberta-v2"])
def test_positions_that_pretraining_left_in_a_deberta_are_dropped(
    tmp_path: Path, model_type: str
) -> None:
    """Where `position_biased_input` is false, `transformers` does not read them."""
    case = all_cases()[model_type]
    save(make_model(case), case, tmp_path / "original")
    file = tmp_path / "original" / "model.safetensors"
    own = load_file(file)
    more = {"deberta.embeddings.position_embeddings.weight": torch.ones(64, 48)}
    save_file({**own, **more}, file, {"format": "pt"})
    import_folder(tmp_path / "original", tmp_path / "imported", registry=registry())
    export_folder(tmp_path / "imported", tmp_path / "exported", registry=registry())
    back = load_file(tmp_path / "exported" / "model.safetensors")
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)


def test_experts_of_a_layer_in_one_tensor(tmp_path: Path) -> None:
    """As those of Qwen3.5 are published and as they are inside transformers, which saves each."""
    case = all_cases()["qwen3_5_moe"]
    truth = make_truth(case, tmp_path / "original")
    tensors = {key: one.clone() for key, one in load(case, truth.folder).state_dict().items()}
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in tensors
    save_file(tensors, truth.folder / "model.safetensors", {"format": "pt"})
    report = check(truth, tmp_path)
    assert report.differences
    assert report.faults == []
