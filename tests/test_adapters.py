"""Adapters of low rank, as PEFT publishes them, are merged into the weights at the import."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.families.adapters import tensor as merged_tensors
from zoo.weights.reader import read_header

LLAMA: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
IDS = torch.tensor([[5, 9, 3, 14, 7]])
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "somebody/tiny",
    "task_type": "CAUSAL_LM",
    "inference_mode": True,
    "r": 3,
    "lora_alpha": 6,
    "lora_dropout": 0.1,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "init_lora_weights": True,
    "loftq_config": {},
    "layer_replication": None,
}
Tensors = dict[str, torch.Tensor]


@pytest.fixture(params=["whole", "in chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in chunks":
        monkeypatch.setattr(merged_tensors, "CHUNK", 22)  # no whole number of rows


def llama(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """Save a tiny Llama; return it."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **changes})).to(dtype).eval()
    model.save_pretrained(folder)
    return model


def factors(paths: list[str], model: nn.Module, rank: int = 3) -> Tensors:
    """A and B of linear maps, by their published names, with values that matter."""
    found: Tensors = {}
    for path in paths:
        weight = model.get_submodule(path).weight
        n_in, n_out = weight.shape if "c_" in path else weight.shape[::-1]  # of GPT-2's Conv1D
        found[f"base_model.model.{path}.lora_A.weight"] = torch.randn(rank, n_in) / 4
        found[f"base_model.model.{path}.lora_B.weight"] = torch.randn(n_out, rank) / 4
    return found


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}, indent=2))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def back(folder: Path, output: Path) -> Tensors:
    """The published tensors of an imported model."""
    zoo.export_folder(folder, output)
    return load_file(output / "model.safetensors")


def sums(model: nn.Module, adapter: Tensors, scale: float) -> Tensors:
    """The weights with what is added, in float64: the formula."""
    found = {name: value.double() for name, value in model.state_dict().items()}
    for name, a in adapter.items():
        if name.endswith(".lora_A.weight"):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = adapter[name.replace("lora_A", "lora_B")]
            delta = scale * (b.double() @ a.double())
            found[f"{path}.weight"] += delta.t() if "c_" in path else delta
    return found


def check(found: Tensors, expected: Tensors, dtype: torch.dtype = torch.float32) -> None:
    """Compare tensors with those of the formula, rounded once."""
    assert found
    for name, value in found.items():
        assert torch.equal(value, expected[name].to(dtype)), name


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_adapter_is_merged(tmp_path: Path, dtype: torch.dtype) -> None:
    model = llama(tmp_path / "base", dtype)
    paths = [f"model.layers.{i}.self_attn.{x}_proj" for i in (0, 1) for x in "qvo"]
    tensors = factors([*paths, "model.layers.1.mlp.down_proj", "lm_head"], model)
    write_adapter(tmp_path / "adapter", tensors)
    digest = zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    expected = sums(model, tensors, 6 / 3)
    check(back(tmp_path / "out", tmp_path / "back"), expected, dtype)
    model.load_state_dict(expected)
    with torch.no_grad():
        theirs = model.float()(IDS).logits
        ours = zoo.load(tmp_path / "out", dtype=torch.float32).eval()(IDS)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    origin = read_header(tmp_path / "out" / "model.safetensors").provenance["origin"]
    assert json.loads(origin["adapter"]["config"])["base_model_name_or_path"] == "somebody/tiny"
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    assert origin["adapter"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    again = zoo.import_folder(
        tmp_path / "base", tmp_path / "again", adapter=tmp_path / "adapter", name="out"
    )
    assert again == digest


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("prefix", ["transformer.", ""], ids=["with a prefix", "without"])
def test_an_adapter_of_gpt2(tmp_path: Path, prefix: str) -> None:
    """Its matrices are stored as (in, out), and those on the Hub without the prefix of the model.
    `fan_in_fan_out` is whatever PEFT has seen last."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=19, n_embd=8, n_layer=2, n_head=2, n_positions=9)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    own = {n.replace("transformer.", prefix): t for n, t in load_file(file).items()}
    save_file(own, file, metadata={"format": "pt"})
    paths = [f"transformer.h.{i}.{x}" for i in (0, 1) for x in ("attn.c_attn", "attn.c_proj")]
    tensors = factors([*paths, "transformer.h.0.mlp.c_fc", "transformer.h.1.mlp.c_proj"], model)
    write_adapter(tmp_path / "adapter", tensors, fan_in_fan_out=not prefix)
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    expected = sums(model, tensors, 6 / 3)
    named = {name.replace("transformer.", prefix): value for name, value in expected.items()}
    check(back(tmp_path / "out", tmp_path / "back"), named)


def test_an_adapter_of_a_model_without_a_head(tmp_path: Path) -> None:
    """`AutoModel` of BERT, whose names begin later than those of the checkpoint."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(vocab_size=19, intermediate_size=12, **sizes)).eval()
    model.save_pretrained(tmp_path / "base")
    paths = [f"bert.encoder.layer.0.attention.self.{x}" for x in ("query", "value")]
    tensors = factors(paths, model)
    cut = {name.replace("model.bert.", "model."): value for name, value in tensors.items()}
    write_adapter(tmp_path / "adapter", cut)
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    expected = sums(model, tensors, 6 / 3)
    check(back(tmp_path / "out", tmp_path / "back"), expected)


def test_patterns_and_the_root_of_the_rank(tmp_path: Path) -> None:
    model = llama(tmp_path / "base")
    paths = [f"model.layers.{i}.self_attn.{x}_proj" for i in (0, 1) for x in "qv"]
    wide = factors(paths[:1], model, rank=5)
    rest = factors(paths[1:], model)
    write_adapter(
        tmp_path / "adapter",
        wide | rest,
        use_rslora=True,
        rank_pattern={"layers.0.self_attn.q_proj": 5},
        alpha_pattern={
            "^model\\.layers\\.0\\.self_attn\\.q_proj": 9,
            "1.self_attn.v_proj": 2.5,
            "proj": 77,  # not the end of a name at a dot
        },
    )
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    found = back(tmp_path / "out", tmp_path / "back")
    v = f"base_model.model.{paths[3]}"
    special = {name: value for name, value in rest.items() if name.startswith(v)}
    usual = {name: value for name, value in rest.items() if name not in special}
    base = model.state_dict()
    for tensors, scale in ((wide, 9 / 5**0.5), (special, 2.5 / 3**0.5), (usual, 6 / 3**0.5)):
        expected = sums(model, tensors, scale)
        changed = {name for name in base if not torch.equal(base[name].double(), expected[name])}
        assert changed
        check({name: found[name] for name in changed}, expected)


@pytest.mark.usefixtures("chunks")
def test_whole_modules_tables_and_biases(tmp_path: Path) -> None:
    """What PEFT saves beside factors: modules, biases, and a table of tokens with its update."""
    model = llama(tmp_path / "base", torch.bfloat16, attention_bias=True)
    paths = ["model.layers.0.self_attn.q_proj"]
    tensors = factors(paths, model)
    head = torch.randn(19, 16)
    table, a, b = torch.randn(19, 16), torch.randn(3, 19), torch.randn(16, 3)
    bias, norm = torch.randn(16), torch.randn(16)
    more = {
        "lm_head.weight": head,
        "model.norm.modules_to_save.default.weight": norm,
        "model.layers.0.self_attn.q_proj.base_layer.bias": bias,
        "model.embed_tokens.base_layer.weight": table,
        "model.embed_tokens.lora_embedding_A": a,
        "model.embed_tokens.lora_embedding_B": b,
    }
    named = {f"base_model.model.{name}": value for name, value in more.items()}
    write_adapter(tmp_path / "adapter", tensors | named, bias="all", modules_to_save=["lm_head"])
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    expected = sums(model, tensors, 6 / 3) | {
        "lm_head.weight": head,
        "model.norm.weight": norm,
        "model.layers.0.self_attn.q_proj.bias": bias,
        "model.embed_tokens.weight": table.double() + 2 * (b.double() @ a.double()).t(),
    }
    check(back(tmp_path / "out", tmp_path / "back"), expected, torch.bfloat16)


@pytest.mark.usefixtures("chunks")
def test_quantized_weights_are_merged_as_what_they_stand_for(tmp_path: Path) -> None:
    """As those that QLoRA trains an adapter of; here in FP8, with a scale for each matrix."""
    model = llama(tmp_path / "base", torch.bfloat16)
    path = "model.layers.0.self_attn.q_proj"
    file = tmp_path / "base" / "model.safetensors"
    stored = load_file(file)
    small = (stored[f"{path}.weight"].float() * 100).to(torch.float8_e4m3fn)
    stored[f"{path}.weight"] = small
    stored[f"{path}.weight_scale_inv"] = torch.full((1, 1), 0.01)
    save_file(stored, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    quantization = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "base" / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization})
    )
    tensors = factors([path], model)
    write_adapter(tmp_path / "adapter", tensors)
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    stands_for = (small.float() * 0.01).bfloat16().double()
    a, b = (tensors[f"base_model.model.{path}.lora_{x}.weight"].double() for x in "AB")
    expected = (stands_for + 2 * (b @ a)).bfloat16()
    assert torch.equal(back(tmp_path / "out", tmp_path / "back")[f"{path}.weight"], expected)


def test_files_beside_the_adapter_count(tmp_path: Path) -> None:
    model = llama(tmp_path / "base")
    write_adapter(tmp_path / "adapter", factors(["model.layers.0.self_attn.q_proj"], model))
    (tmp_path / "base" / "chat_template.jinja").write_text("base")
    (tmp_path / "base" / "vocab.json").write_text("{}")
    (tmp_path / "adapter" / "chat_template.jinja").write_text("adapter")
    zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=tmp_path / "adapter")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "adapter"
    assert (tmp_path / "out" / "vocab.json").read_text() == "{}"
    (tmp_path / "adapter" / "vocab.json").write_text("{")
    with pytest.raises(zoo.WeightsError, match=r"adapter/vocab\.json:1:2: error: not JSON"):
        zoo.import_folder(tmp_path / "base", tmp_path / "new", adapter=tmp_path / "adapter")


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = llama(tmp_path / "base")
    write_adapter(tmp_path / "tuned", factors(["model.layers.0.self_attn.q_proj"], model))
    monkeypatch.chdir(tmp_path)
    assert run(["import", "base", "--adapter", "tuned", "-o", "out"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("tuned: ")  # by the name of the adapter's folder
    assert "\nwith the adapter tuned in its weights\n" in told
    assert zoo.load("out").spec.name == "tuned"
    assert run(["import", "base", "--adapter", "nowhere"]) == 2
    assert "nowhere: error: there is no such folder" in capsys.readouterr().err


@pytest.mark.usefixtures("chunks")
def test_a_sum_that_the_dtype_of_the_weights_cannot_hold(tmp_path: Path, refused: Refused) -> None:
    model, path = llama(tmp_path / "base", torch.float16), "model.layers.1.self_attn.q_proj"
    ones = {name: torch.ones_like(factor) for name, factor in factors([path], model).items()}
    write_adapter(tmp_path / "adapter", ones, lora_alpha=70_000)  # 70,000 more in each place
    arguments = ["import", str(tmp_path / "base"), "--adapter", str(tmp_path / "adapter"), "-o"]
    told = refused(*arguments, str(tmp_path / "out"))
    assert f"256 values of `{path}.weight` would be infinite in float16\n" in told
    assert not (tmp_path / "out").exists()


def a_name(path: str = "model.layers.0.self_attn.q_proj", which: str = "A") -> str:
    return f"base_model.model.{path}.lora_{which}.weight"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"peft_type": "IA3"}, {}, "an adapter of the type `IA3` is not read"),
        ({"use_dora": True}, {}, "`use_dora` is stated, and what it changes is not read"),
        ({"lora_bias": True}, {}, "`lora_bias` is stated"),
        ({"layer_replication": [[0, 1]]}, {}, "`layer_replication` is stated"),
        ({"something_new": 1}, {}, "`something_new` is stated"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "factors that begin by `pissa_niter_4`"),
        ({"bias": "some"}, {}, "`bias` is `some`"),
        ({"r": 0}, {}, "`r` is no positive number"),
        ({"r": True}, {}, "`r` is no positive number"),
        ({"lora_alpha": 10**400}, {}, "`lora_alpha` is no positive number"),
        ({"lora_alpha": None}, {}, "`lora_alpha` is no positive number"),
        ({"alpha_pattern": {"(.*)+q_proj": 1}}, {}, "`(.*)+q_proj` is a regular expression"),
        ({"alpha_pattern": {"q_proj": "1"}}, {}, "`q_proj` is no positive number"),
        ({"alpha_pattern": [1]}, {}, "`alpha_pattern` is no table"),
        ({"r": 4}, {}, "is of rank 3, which adapter_config.json does not state"),
        ({}, {a_name(which="B"): None}, "there is A [3, 16]: no matrices B A"),
        ({}, {a_name(which="B"): torch.ones(16, 2)}, "A [3, 16] and B [16, 2]: no matrices"),
        ({}, {a_name(which="B"): torch.ones(8, 3)}, "as one of [8, 16], and the checkpoint's is"),
        ({}, {a_name(): torch.ones(3, 16, dtype=torch.int64)}, "is I64, which is not read"),
        ({}, {"base_model.model.score.weight": torch.ones(2, 16)}, "there is no tensor `score."),
        ({}, {"base_model.model.q_proj.bias": torch.ones(16)}, "there is no tensor `q_proj.bias`"),
        (
            {},
            {"base_model.model.self_attn.o_proj.weight": torch.ones(16, 16)},
            "there are several tensors `self_attn.o_proj.weight`",
        ),
        (
            {},
            {"base_model.model.model.norm.weight": torch.ones(16), "norm.weight": torch.ones(16)},
            "two of its tensors are for one",
        ),
        (
            {},
            {"base_model.model.model.embed_tokens.weight": torch.ones(23, 16)},
            "as one of [23, 16], and the checkpoint's is [19, 16]",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    model = llama(tmp_path / "base")
    changed = factors(["model.layers.0.self_attn.q_proj"], model) | tensors
    kept = {name: value for name, value in changed.items() if value is not None}
    adapter = write_adapter(tmp_path / "adapter", kept, **config)
    with pytest.raises(zoo.WeightsError) as error:
        zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=adapter)
    assert message in str(error.value)
    assert str(adapter) in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head"])
@pytest.mark.parametrize("copied", [False, True])
def test_tied_tables_are_not_adapted(tmp_path: Path, name: str, copied: bool) -> None:
    """Also where the checkpoint has a copy of the table as the head."""
    llama(tmp_path / "base", tie_word_embeddings=True)
    if copied:
        file = tmp_path / "base" / "model.safetensors"
        stored = load_file(file)
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
        save_file(stored, file, metadata={"format": "pt"})
    table = {f"base_model.model.{name}.weight": torch.ones(19, 16)}
    adapter = write_adapter(tmp_path / "adapter", table)
    with pytest.raises(zoo.WeightsError, match="the adapter does not fit") as error:
        zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=adapter)
    assert "it says that it is of `somebody/tiny`" in str(error.value)
    if copied:
        assert f"it changes `{name}.weight`, of which the checkpoint has a copy" in str(error.value)


def test_missing_files(tmp_path: Path) -> None:
    model = llama(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", factors(["lm_head"], model))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(zoo.WeightsError, match="opening it can run code"):
        zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=adapter)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(zoo.WeightsError, match=r"adapter_config\.json: error: cannot be read"):
        zoo.import_folder(tmp_path / "base", tmp_path / "out", adapter=adapter)
