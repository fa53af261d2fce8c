"""`zoo export` of models whose file states a wrong or inconsistent origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import zoo
from zoo import export_folder, import_folder
from zoo.cli import run
from zoo.registry import read_layers, shipped_registry

Origin = dict[str, Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return an imported model with a tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=19,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    source = tmp_path / "source"
    LlamaForCausalLM(config).save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    import_folder(source, tmp_path / "mine")
    return tmp_path / "mine"


def change_origin(model: Path, change: Callable[[Origin], Any]) -> None:
    """Write the model again with another origin."""
    loaded = zoo.load(model)
    assert loaded.origin is not None
    origin = json.loads(json.dumps(loaded.origin))
    change(origin)
    loaded.origin = origin
    zoo.save(loaded, model)


def refused(model: Path) -> str:
    """Return the message of an export that must fail and leave no files."""
    before = sorted(model.parent.rglob("*"))
    output = model.parent / "deep" / "output"
    with pytest.raises(zoo.ZooError) as error:
        export_folder(model, output)
    assert sorted(model.parent.rglob("*")) == before
    return str(error.value)


def change_config(**values: Any) -> Callable[[Origin], Any]:
    def change(origin: Origin) -> None:
        origin["config"] = json.dumps({**json.loads(origin["config"]), **values})

    return change


def rename(new: str) -> Callable[[Origin], Any]:
    return lambda origin: origin.update(renamed={"lm_head.weight": new})


def test_tensors_of_several_widths_are_aligned(tmp_path: Path) -> None:
    """Each tensor begins at a multiple of its width, as readers that map the file expect."""
    sizes = {"vocab_size": 19, "hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 5}
    source = BertForMaskedLM(BertConfig(num_hidden_layers=1, **sizes))
    source.cls.predictions.bias.data = source.cls.predictions.bias.data.bfloat16()
    source.save_pretrained(tmp_path / "source")
    import_folder(tmp_path / "source", tmp_path / "mine")
    export_folder(tmp_path / "mine", tmp_path / "back")
    file = (tmp_path / "back" / "model.safetensors").read_bytes()
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    widths = {"F32": 4, "BF16": 2}
    starts = {
        (widths[entry["dtype"]], 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }
    assert {width for width, _ in starts} == {2, 4}
    assert all(start % width == 0 for width, start in starts)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("stated", ["bfloat16", "float16"])  # the latter of files in bfloat16
def test_the_dtype_of_the_configuration_is_that_of_the_tensors(
    key: str, stated: str, model: Path, tmp_path: Path
) -> None:
    """Or `transformers` would round them."""
    LlamaForCausalLM.from_pretrained(tmp_path / "source").bfloat16().save_pretrained(
        tmp_path / "half"
    )
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert config.pop("dtype") == "bfloat16"
    (tmp_path / "half" / "config.json").write_text(json.dumps({key: stated, **config}))
    import_folder(tmp_path / "half", tmp_path / "other")
    export_folder(tmp_path / "other", tmp_path / "same")
    before, after = ((tmp_path / name / "config.json").read_bytes() for name in ("half", "same"))
    assert after == before

    changed = zoo.load(tmp_path / "other", dtype="float32")
    with torch.no_grad():
        changed.decoder.norm.weight += 1e-4  # less than bfloat16 tells from 1
    zoo.save(changed, tmp_path / "changed")
    export_folder(tmp_path / "changed", tmp_path / "back")
    told = json.loads((tmp_path / "back" / "config.json").read_text())
    assert told == {key: "float32", **config}
    found = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype="auto")
    assert torch.equal(found.model.norm.weight, changed.decoder.norm.weight)


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../evil",
        "a/b/evil",
        "..",
        ".hidden",
        "a\\evil/../../x",
        "config.json",
        "model.safetensors",
        "",
    ],
)
def test_file_that_cannot_have_come_along(model: Path, name: str) -> None:
    change_origin(model, lambda origin: origin["files"].update({name: "0" * 64}))
    assert "what it says of its origin is damaged: " in refused(model)


@pytest.mark.parametrize("name", ["../../evil/x", "/etc/evil/x", "../x", "a/b/x", "a/", ""])
def test_tensor_in_a_place_that_is_none(model: Path, name: str) -> None:
    change_origin(model, rename(name))
    assert "its origin is damaged: `renamed.lm_head.weight`: " in refused(model)
    change_origin(model, lambda origin: origin.update(renamed={}, tensors=[name]))
    assert "its origin is damaged: `tensors.0`: " in refused(model)


def test_two_tensors_of_one_name(model: Path) -> None:
    change_origin(model, rename("model.norm.weight"))
    assert "two tensors have one name" in refused(model)


def test_tensor_that_the_model_lacks(model: Path) -> None:
    change_origin(model, lambda origin: origin["tensors"].append("model.extra.weight"))
    assert "has no rule for the tensor `model.extra.weight`" in refused(model)


def test_tensor_that_only_the_model_has(model: Path) -> None:
    change_origin(model, lambda origin: origin["tensors"].remove("model.norm.weight"))
    assert "no tensor that becomes `decoder.norm.weight`" in refused(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda origin: origin.update(family="lama"), "did you mean `llama`?"),
        (lambda origin: origin.update(family="../llama"), "no family"),
        (lambda origin: origin.update(family="gpt2"), "gpt2"),
        (lambda origin: origin.update(family="mistral"), "mistral"),
        (lambda origin: origin.pop("family"), "`family`: Field required"),
        (lambda origin: origin.update(more=1), "`more`: Extra inputs"),
        (lambda origin: origin.update(tensors="all"), "`tensors`: "),
        (lambda origin: origin.update(config="{"), "not JSON"),
        (lambda origin: origin.update(config="[]"), "an object is expected"),
        (change_config(num_attention_heads=4), "with another `decoder.block.self_attn.n_heads`"),
        (change_config(intermediate_size=24), "with another `decoder.block.ffn.d_ff`"),
        (change_config(hidden_size="8"), "`hidden_size` must be an integer"),
        (change_config(rms_norm_eps=0.5), "means another model"),
    ],
)
def test_origin_of_another_model(
    model: Path, change: Callable[[Origin], Any], message: str
) -> None:
    change_origin(model, change)
    assert message in refused(model)


def test_spec_that_was_changed_since(model: Path) -> None:
    """Its weights fit the old configuration, which would describe another model."""
    loaded = zoo.load(model)
    spec = loaded.spec.to_dict()
    spec["decoder"]["norm"]["eps"] = 0.5
    changed = zoo.build(spec)
    changed.load_state_dict(loaded.state_dict())
    changed.origin = loaded.origin
    zoo.save(changed, model)
    assert "means another model, with another `decoder.norm.eps`" in refused(model)


def test_file_that_has_changed_since(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"mine": 1}')
    message = refused(model)
    assert f"{model}/tokenizer.json: error: it is not the file that came along" in message


def test_the_registry_that_is_passed_is_the_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registry.toml").write_text("broken")
    monkeypatch.chdir(tmp_path)
    export_folder(model, tmp_path / "back", registry=read_layers([shipped_registry()]))
    with pytest.raises(zoo.RegistryError):
        export_folder(model, tmp_path / "again")


def test_folder_that_is_named_as_a_file(model: Path) -> None:
    with pytest.raises(zoo.WeightsError, match=r"back\.safetensors"):
        export_folder(model, model.parent / "back.safetensors")
    assert not (model.parent / "back.safetensors").exists()


def test_on_the_command_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_origin(model, lambda origin: origin["files"].update({"../evil": "0" * 64}))
    output = tmp_path / "output"
    assert run(["export", str(model), "--to", "hf", "-o", str(output)]) == 2
    told = capsys.readouterr()
    assert f"{model}/model.safetensors: error: what it says of its origin is damaged" in told.err
    assert not output.exists()


def test_shards_as_transformers_reads_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    capsys.readouterr()
    size = (source / "model.safetensors").stat().st_size
    assert run(["export", str(model), "--to", "hf", "-o", str(tmp_path / "one"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "one")}
    options = ["--to", "hf", "--max-shard-bytes"]
    assert run(["export", str(model), *options, str(size), "-o", str(tmp_path / "fits")]) == 0
    for folder in ("one", "fits"):
        written = (tmp_path / folder / "model.safetensors").read_bytes()
        assert written == (source / "model.safetensors").read_bytes()
    assert run(["export", str(model), *options, "1kB", "-o", str(tmp_path / "several")]) == 0
    theirs = LlamaForCausalLM.from_pretrained(source).state_dict()
    read, told = LlamaForCausalLM.from_pretrained(tmp_path / "several", output_loading_info=True)
    assert not any(told.values())
    assert all(theirs[name].equal(tensor) for name, tensor in read.state_dict().items())
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    shards = [load_file(path) for path in sorted((tmp_path / "several").glob("*.safetensors"))]
    assert len(shards) > 2
    assert all(sum(one.nbytes for one in shard.values()) <= 1000 for shard in shards)
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in theirs.values())
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        assert {name for name, where in index["weight_map"].items() if where == file} == {*shard}
    again = import_folder(tmp_path / "several", tmp_path / "again", name="source")
    assert zoo.save(zoo.load(model), tmp_path / "whole") == again
    with pytest.raises(zoo.ZooError, match="`max_shard_bytes` is an integer of at least 1, not 0"):
        export_folder(model, tmp_path / "none", max_shard_bytes=0)
