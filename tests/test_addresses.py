"""`zoo import hf://...`: a checkpoint at an address is what its folder is."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from loopback_hub import Hub, loopback_hub, take_for_the_hub
from safetensors.torch import load_file, save
from transformers import LlamaConfig, LlamaForCausalLM
from trials import Command, Refused, contents, process

import zoo
from zoo.cli import run
from zoo.store.files import Store

COMMIT = "0123456789" * 4


@pytest.fixture
def hub(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    with loopback_hub(tmp_path, monkeypatch) as made:
        take_for_the_hub(made, monkeypatch)
        yield made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The folder of a tiny Llama, with a file that belongs to no model of the zoo."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "Tiny-Llama")
    (tmp_path / "Tiny-Llama" / "pytorch_model.bin").write_bytes(b"a pickle")
    return tmp_path / "Tiny-Llama"


def publish(hub: Hub, repo: str, folder: Path) -> None:
    """Put the files of a folder into a repository of the hub."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
    info = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
    for path in ("", f"/revision/{COMMIT}"):
        hub.files[f"/api/models/{repo}{path}"] = info
    for name, content in files.items():
        hub.files[f"/{repo}/resolve/{COMMIT}/{name}"] = content


def test_a_checkpoint_of_the_hub(hub: Hub, checkpoint: Path, project: Path, store: Store) -> None:
    publish(hub, "owner/Tiny-Llama", checkpoint)
    done = process("import", "hf://owner/Tiny-Llama")
    assert done.returncode == 0, done.stderr
    assert f"owner/Tiny-Llama at the commit {COMMIT}\n" in done.stdout
    zoo.import_folder(checkpoint, "from-folder", name="Tiny-Llama")
    assert contents(project / "Tiny-Llama") == contents(project / "from-folder")
    asked = {path.rpartition("/")[2] for _, path, _ in hub.requests}
    assert "pytorch_model.bin" not in asked
    assert [*(store.root / "work").iterdir()] == []
    assert [*(store.root / "partial").iterdir()] == []


def test_the_language_model_of_a_checkpoint_of_the_hub(
    hub: Hub, checkpoint: Path, project: Path, command: Command
) -> None:
    """It is what the language model of a folder is, and what is left out is told."""
    text = json.loads((checkpoint / "config.json").read_text())
    whole = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    (checkpoint / "config.json").write_text(json.dumps({**whole, "text_config": text}))
    tensors = load_file(checkpoint / "model.safetensors")
    tensors = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    tensors["vision_tower.embeddings.weight"] = torch.ones(2, 8)
    (checkpoint / "model.safetensors").write_bytes(save(tensors))
    publish(hub, "owner/Tiny-Llava", checkpoint)
    status, out, err = command("import", "hf://owner/Tiny-Llava", "--part", "text")
    assert status == 0, err
    assert f"owner/Tiny-Llava at the commit {COMMIT}\n" in out
    assert "left out: 1 tensor of `vision_tower`, 64 bytes\n" in out
    zoo.import_folder(checkpoint, "from-folder", part="text", name="Tiny-Llava")
    assert contents(project / "Tiny-Llava") == contents(project / "from-folder")


@pytest.mark.parametrize("revision", ["step3000", COMMIT])
def test_a_revision_of_the_hub(
    revision: str, hub: Hub, checkpoint: Path, project: Path, store: Store, command: Command
) -> None:
    """The latest commit is another one."""
    publish(hub, "owner/Tiny-Llama", checkpoint)
    info = hub.files.pop("/api/models/owner/Tiny-Llama")
    hub.files[f"/api/models/owner/Tiny-Llama/revision/{revision}"] = info
    status, out, err = command("import", f"hf://owner/Tiny-Llama@{revision}")
    assert status == 0, err
    assert f"owner/Tiny-Llama at the commit {COMMIT}\n" in out
    zoo.import_folder(checkpoint, "from-folder", name="Tiny-Llama")
    assert contents(project / "Tiny-Llama") == contents(project / "from-folder")
    status, _, err = command("import", "hf://owner/Tiny-Llama@step4000")
    assert status == 2
    assert "owner/Tiny-Llama@step4000 cannot be read from the hub: 404" in err


def test_an_adapter_of_the_hub(hub: Hub, checkpoint: Path, project: Path, command: Command) -> None:
    adapter = project / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    path = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    factors = {f"{path}A.weight": torch.ones(1, 8), f"{path}B.weight": torch.ones(8, 1)}
    (adapter / "adapter_model.safetensors").write_bytes(save(factors))
    publish(hub, "owner/Tiny-Llama", checkpoint)
    publish(hub, "someone/tuned", adapter)
    status, out, err = command(
        "import", "hf://owner/Tiny-Llama", "--adapter", "hf://someone/tuned", "--json"
    )
    assert status == 0, err
    told = json.loads(out)
    assert [one["repo"] for one in told["sources"]] == ["owner/Tiny-Llama", "someone/tuned"]
    assert told["path"] == "tuned"
    zoo.import_folder(checkpoint, "plain")
    before, after = zoo.load("plain").state_dict(), zoo.load("tuned").state_dict()
    name = "decoder.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(after[name], before[name] + 2.0)


def test_a_download_that_breaks_off_is_continued(
    hub: Hub, checkpoint: Path, project: Path, store: Store, command: Command
) -> None:
    publish(hub, "owner/Tiny-Llama", checkpoint)
    size = (checkpoint / "model.safetensors").stat().st_size
    hub.truncate = size // 8
    status, _, err = command("import", "hf://owner/Tiny-Llama")
    assert status == 2
    assert "model.safetensors` ends after" in err
    hub.truncate = None
    hub.requests.clear()
    status, _, err = command("import", "hf://owner/Tiny-Llama")
    assert status == 0, err
    ranges = [asked for _, path, asked in hub.requests if path.endswith("model.safetensors")]
    assert ranges
    assert all(asked.startswith("bytes=") for asked in ranges)


def test_a_folder_elsewhere(checkpoint: Path, project: Path, store: Store) -> None:
    assert run(["import", f"file://{checkpoint}", "-o", "ours"]) == 0
    zoo.import_folder(checkpoint, "from-folder", name="Tiny-Llama")
    assert contents(project / "ours") == contents(project / "from-folder")


def test_an_adapter_beside_weights_is_not_left_out(
    checkpoint: Path, project: Path, store: Store, refused: Refused
) -> None:
    """As for a folder: `transformers` would merge it, and its file is none that is downloaded."""
    (checkpoint / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    told = refused("import", f"file://{checkpoint}", "-o", "ours")
    assert f"file://{checkpoint}: adapter_config.json says that there is an adapter\n" in told
    assert "as `--adapter`" in told
    manifest = (
        'format = 1\nfamily = "llama"\ntrust = "first_use"\nlicense = { weights = "CC0-1.0" }\n'
        f"[source]\nkind = 'local'\npath = '{checkpoint}'\n"
    )
    (project / "models").mkdir(exist_ok=True)
    (project / "models" / "tiny.v1.toml").write_text(manifest)
    (project / "registry.toml").write_text("format = 1\ncatalog = 'models'\n")
    told = refused("pull", "tiny.v1", "--trust-first-use")
    assert "tiny.v1: adapter_config.json says that there is an adapter\n" in told
    (checkpoint / "adapter_config.json").unlink()
    assert run(["import", f"file://{checkpoint}", "-o", "ours"]) == 0
    assert run(["pull", "tiny.v1", "--trust-first-use"]) == 0


def test_addresses_of_nothing(
    hub: Hub,
    project: Path,
    store: Store,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    assert "nothing can be read from `https://a.b/c`" in refused("import", "https://a.b/c")
    assert "write `hf://owner/name`" in refused("import", "hf://a/b/c")
    for named in ("", "a/b", "a b", "-a"):
        told = refused("import", f"hf://a/b@{named}")
        assert f"`{named}` after the `@` is no revision" in told
        assert "as `hf://a/b@main`" in told
    (project / "empty").mkdir()
    told = refused("import", f"file://{project}/empty")
    assert "is a file of a model" in told
    status, _, err = command("import", "hf://owner/none")
    assert status == 2
    assert "owner/none cannot be read from the hub: 404" in err
    assert "`zoo import hf://owner/name` reads a repository" in refused("import", "owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids to reach hf://a/b" in refused("import", "hf://a/b")
