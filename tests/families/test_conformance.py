"""The harness itself: its checkpoints hide nothing, and it sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from families.cases import all_cases
from families.checkpoints import make_model, read_config, save, without_defaults
from families.conformance import (
    Report,
    compare,
    compare_outputs,
    compare_tensors,
    make_truth,
    registry,
)
from families.inputs import LENGTH, SHORT
from zoo import export_folder, import_folder
from zoo.families.import_plan import plan_import

COMPUTED = {
    "bert": (),
    "gemma4_text": (),
    "gpt_oss": (),
    "marian": ("model.decoder.embed_positions.weight", "model.encoder.embed_positions.weight"),
    "olmoe": (),
    "whisper": ("model.encoder.embed_positions.weight",),
}
"""Of some cases, the tensors that are computed and not trained."""


@pytest.mark.parametrize("name", COMPUTED)
def test_every_saved_tensor_that_is_not_computed_is_random(name: str, tmp_path: Path) -> None:
    """Norms, biases, padding rows and buffers included: no row of any of them is a constant, and
    nothing is what transformers initialised it with."""
    case = all_cases()[name]
    save(make_model(case), case, tmp_path)
    for key, tensor in load_file(tmp_path / "model.safetensors").items():
        rows = tensor.reshape(tensor.shape[0] if tensor.dim() > 1 else 1, -1)
        varies = bool((rows != rows[:, :1]).any(1).all()) or rows.shape[1] == 1
        assert varies, key
        assert key in COMPUTED[name] or not torch.isin(tensor, torch.tensor([0.0, 1.0])).any(), key


def test_a_checkpoint_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    case = all_cases()["gpt_oss"]
    for seed, folder in enumerate(("one", "two")):
        torch.manual_seed(seed)
        save(make_model(case), case, tmp_path / folder)
    one, two = (tmp_path / folder / "model.safetensors" for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_texts_are_longer_than_every_window() -> None:
    """Windows on one side, on both, and chunks. An original length lies between those of two texts,
    so that both sides of it are seen."""
    keys = {"sliding_window", "window_size", "attention_chunk_size", "local_attention"}
    stated = [case.config[key] for case in all_cases().values() for key in keys & set(case.config)]
    windows = [window for window in stated if window is not None]
    assert len(windows) > 20
    assert max(windows) < LENGTH
    assert SHORT < all_cases()["phi3.longrope"].config["original_max_position_embeddings"] < LENGTH


def test_a_config_without_defaults_says_less(tmp_path: Path) -> None:
    case = all_cases()["gpt2"]
    save(make_model(case), case, tmp_path)
    short, whole = without_defaults(tmp_path, case), read_config(tmp_path)
    assert short.items() <= whole.items()
    assert {"scale_attn_weights", "activation_function"} <= whole.keys() - short.keys()
    assert {"model_type", "n_embd", "layer_norm_epsilon"} <= short.keys()


@pytest.mark.parametrize("where", ["weights", "spec"])
def test_a_wrong_model_is_seen(where: str, tmp_path: Path) -> None:
    """One bias of one layer, or the epsilon of the norms."""
    truth = make_truth(all_cases()["gpt2"], tmp_path / "original")
    import_folder(truth.folder, tmp_path / "imported", name="tiny")
    report = Report()
    compare_outputs(truth, tmp_path / "imported", report)
    assert report.differences
    assert report.faults == []
    model = zoo.load(tmp_path / "imported")
    if where == "weights":
        with torch.no_grad():
            model.get_parameter("decoder.layers.1.ffn.pre_norm.bias")[5] += 1e-3
    else:
        spec = model.spec.to_dict()
        assert spec["decoder"]["norm"]["eps"] == 1e-3
        spec["decoder"]["norm"]["eps"] = 1e-5
        other = zoo.build(spec)
        other.load_state_dict(model.state_dict())
        model = other
    zoo.save(model, tmp_path / "wrong.safetensors")
    compare_outputs(truth, tmp_path / "wrong.safetensors", report)
    assert len(report.faults) == len(truth.inputs)


def test_a_wrong_export_is_seen(tmp_path: Path) -> None:
    """A bit that differs, another type, another shape, a tensor too few and one too many."""
    truth = make_truth(all_cases()["gpt2"], tmp_path / "original")
    planned = plan_import(truth.folder, name="tiny", registry=registry())
    import_folder(truth.folder, tmp_path / "imported", name="tiny")
    export_folder(tmp_path / "imported", tmp_path / "exported")
    file = tmp_path / "exported" / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.ln_f.weight"].view(torch.int32)[3] ^= 1
    tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"].double()
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].t().contiguous()
    tensors["more"] = tensors.pop("transformer.wte.weight")
    save_file(tensors, file)
    report = Report()
    compare_tensors(planned, truth.folder, tmp_path / "exported", report)
    assert report.faults == [
        "export: `more` was not in the original",
        "export: `transformer.ln_f.bias` is torch.float64 (48,), not torch.float32 (48,)",
        "export: `transformer.ln_f.weight` has other bytes",
        "export: `transformer.wpe.weight` is torch.float32 (48, 64), not torch.float32 (64, 48)",
        "export: `transformer.wte.weight` is missing",
    ]


@pytest.mark.parametrize("value", [1.00003, float("nan"), float("inf")])
def test_a_difference_is_told_with_its_place(value: float) -> None:
    found = torch.ones(2, 3)
    found[1, 2] = value
    difference = compare(found, torch.ones(2, 3), "plain", "output")
    assert difference.excess > 1
    assert difference.first is not None
    assert difference.first.startswith("[1, 2] is ")


def test_what_is_within_the_tolerance_is_no_difference() -> None:
    """1e-5 absolute and relative, as `torch.allclose` has it."""
    difference = compare(torch.full((2,), 3.00003), torch.full((2,), 3.0), "plain", "output")
    assert difference.first is None
    assert difference.largest == pytest.approx(3e-5, rel=0.01)
