"""Published checkpoints hold layers that predict further tokens than the next one, which neither
`transformers` nor the zoo has a place for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from families.cases import all_cases
from families.checkpoints import make_model, save
from families.conformance import registry

# The names that publications use; `LAST` is the number of layers.
OF_A_LAYER = (
    "model.layers.LAST.eh_proj.weight",
    "model.layers.LAST.enorm.weight",
    "model.layers.LAST.shared_head.head.weight",
    "model.layers.LAST.input_layernorm.weight",
    "model.layers.LAST.self_attn.o_proj.weight",
    "model.layers.LAST.mlp.experts.0.gate_proj.weight",
)
NAMES = {
    "deepseek_v3": OF_A_LAYER,
    "deepseek_v32": OF_A_LAYER,
    "deepseek_v4": ("mtp.0.attn.wq_a.weight", "mtp.0.ffn.gate.tid2eid", "mtp.0.norm.weight"),
    "deepseek_v4.published": ("mtp.0.attn.wq_a.weight", "mtp.0.hc_head_fn"),
    "glm4_moe": OF_A_LAYER,
    "glm4_moe_lite": OF_A_LAYER,
    "hy_v3": OF_A_LAYER,
    "mimo_v2_flash": (
        "model.mtp.layers.0.self_attn.q_proj.weight",
        "model.mtp.layers.0.norm.weight",
    ),
    "mellum": ("mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"),
    "ernie4_5_moe": ("model.mtp_block.0.mlp.up_proj.weight", "model.mtp_emb_norm.0.weight"),
    "qwen3_5": ("mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"),
    "qwen3_next": ("mtp.fc.weight", "mtp.layers.0.mlp.experts.1.up_proj.weight"),
}


def published(name: str, folder: Path, *, without: str = "") -> dict[str, torch.Tensor]:
    """Save a tiny checkpoint with further layers; return the tensors of the others."""
    case = all_cases()[name]
    model = make_model(case)
    save(model, case, folder)
    tensors = load_file(folder / "model.safetensors")
    last = str(model.config.get_text_config().num_hidden_layers)
    more = {key.replace("LAST", last): torch.ones(2, 3) for key in NAMES[name] if key != without}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("name", NAMES)
def test_they_are_left_out(name: str, tmp_path: Path) -> None:
    tensors = published(name, tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", registry=registry())
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported", registry=registry())
    found = load_file(tmp_path / "exported" / "model.safetensors")
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(found[key], tensor), key


def test_a_layer_too_many_is_no_such_layer(tmp_path: Path) -> None:
    """It is one that config.json does not count."""
    published("deepseek_v3", tmp_path / "source", without=OF_A_LAYER[0])
    with pytest.raises(zoo.WeightsError, match="the model has no place for the tensor"):
        zoo.import_folder(tmp_path / "source", tmp_path / "imported", registry=registry())
