"""`zoo import` and `zoo export` on a small checkpoint, whole and damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    HeliumConfig,
    HeliumForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    RoFormerConfig,
    RoFormerForMaskedLM,
)
from trials import Command, process, python

import zoo
from zoo import cli, export_folder, import_folder
from zoo.errors import Place
from zoo.families import tensor_writer
from zoo.families.checkpoint import Stored, find_tensors
from zoo.families.family import Rule, read_family, with_rules
from zoo.families.import_plan import plan_import
from zoo.families.importing import save_import
from zoo.families.plan import make_plan
from zoo.families.reader import Reader
from zoo.families.registered import Families
from zoo.families.scope import Scope
from zoo.families.spec import family_spec
from zoo.json_files import parse_json, read_json
from zoo.weights.open_file import OpenFile

LLAMA: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
    "bos_token_id": None,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a checkpoint of a tiny Llama."""
    torch.manual_seed(0)
    folder = tmp_path / "source"
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    return folder


def refused(source: Path, *, at: str | None = None) -> str:
    """Return the message of an import that must fail and leave no files."""
    output = source.parent / "output"
    with pytest.raises(zoo.ZooError) as error:
        import_folder(source, output)
    assert not output.exists()
    assert [path.name for path in source.parent.iterdir()] == [source.name]
    if at is not None:
        assert error.value.problems[0].place is not None
        assert str(error.value.problems[0].place).removeprefix(f"{source}/").startswith(at)
    return str(error.value)


def change_config(source: Path, **values: Any) -> None:
    path = source / "config.json"
    config = {**json.loads(path.read_text()), **values}
    config = {key: value for key, value in config.items() if value is not ...}
    path.write_text(json.dumps(config, indent=2))


def with_a_copy_of_the_table(tensors: dict[str, torch.Tensor]) -> None:
    """As some checkpoints of models with tied tables are stored."""
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def change_tensors(source: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})


# --- what works ---------------------------------------------------------------------------------


def test_on_the_command_line(source: Path, command: Command) -> None:
    mine, back = source.parent / "mine", source.parent / "back"
    made = process("import", source, "-o", mine, "--name", "tiny", "--json")
    report = json.loads(made.stdout)
    n_parameters = LlamaForCausalLM(LlamaConfig(**LLAMA)).num_parameters()
    assert (report["family"], report["parameters"]) == ("llama", n_parameters)
    assert zoo.load(mine).spec.name == "tiny"
    assert command("export", mine, "--to", "hf", "-o", back)[0] == 0
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    status, _, err = command("export", mine, "--to", "hf", "-o", back)
    assert status == 2
    assert "is there already" in err


def test_a_tensor_of_another_dtype_is_told(source: Path, command: Command) -> None:
    norms = ["model.layers.0.input_layernorm.weight", "model.norm.weight"]
    change_tensors(source, lambda t: t.update({name: t[name].bfloat16() for name in norms}))
    _, told, _ = command("import", source, "-o", source.parent / "a")
    assert told.splitlines()[1] == (
        "float32, but 2 tensors in bfloat16: `decoder.layers.0.self_attn.pre_norm.weight`, ...; "
        "they stay so unless `zoo.load(..., dtype=...)` casts all to one"
    )
    _, told, _ = command("import", source, "-o", source.parent / "b", "--json")
    report = json.loads(told)
    ours = ["decoder.layers.0.self_attn.pre_norm.weight", "decoder.norm.weight"]
    assert (report["dtype"], report["other_dtypes"]) == ("float32", {"bfloat16": ours})


def test_shards(source: Path) -> None:
    whole = import_folder(source, source.parent / "whole", name="m")
    model = LlamaForCausalLM.from_pretrained(source)
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="1KB")
    assert len(list(source.glob("*.safetensors"))) > 3
    assert import_folder(source, source.parent / "sharded", name="m") == whole


def test_tensors_that_mean_zeros_are_of_the_usual_dtype(tmp_path: Path) -> None:
    source = tmp_path / "source"
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"vocab_size": 19, "d_model": 8, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    config = BartConfig(**sizes, **heads, **layers, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    BartForConditionalGeneration(config).bfloat16().save_pretrained(source)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop("final_logits_bias")
        norm = "model.decoder.layernorm_embedding.weight"
        tensors[norm] = tensors[norm].float()  # the first in the file

    change_tensors(source, change)
    import_folder(source, tmp_path / "mine")
    model = zoo.load(tmp_path / "mine")
    bias = model.head.logits_bias
    assert bias.dtype == torch.bfloat16
    assert not bias.any()
    export_folder(tmp_path / "mine", tmp_path / "back")
    assert "final_logits_bias" not in load_file(tmp_path / "back/model.safetensors")
    bias[3] = 1.0
    zoo.save(model, tmp_path / "changed")
    with pytest.raises(zoo.WeightsError, match=r"`head\.logits_bias` is not zero"):
        export_folder(tmp_path / "changed", tmp_path / "lost")
    assert not (tmp_path / "lost").exists()


def test_a_whole_file_goes_before_an_index(source: Path) -> None:
    """If a folder has both, transformers reads the file."""
    model = LlamaForCausalLM.from_pretrained(source)
    torch.nn.init.ones_(model.model.norm.weight)
    model.save_pretrained(source / "shards", max_shard_size="1KB")
    change_tensors(source, lambda tensors: tensors["model.norm.weight"].fill_(2.0))
    for path in (source / "shards").iterdir():
        path.rename(source / path.name)
    import_folder(source, source.parent / "mine")
    theirs = LlamaForCausalLM.from_pretrained(source).model.norm.weight
    assert torch.equal(zoo.load(source.parent / "mine").decoder.norm.weight, theirs)


PEAK = """
import os, sys
from pathlib import Path
from zoo import import_folder

os.cpu_count = lambda: 16  # with more cores, more tensors are under way

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

import_folder(Path(sys.argv[1]), Path("first"))  # what is imported and allocated once
before = peak()
import_folder(Path(sys.argv[2]), Path("second"))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("is_transposed", [False, True])
def test_memory_is_bounded_by_a_shard(source: Path, is_transposed: bool) -> None:
    """For any number of shards, at most one is in memory, and never the whole model."""
    big = {**LLAMA, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16}
    folder = source.parent / "big"
    llama, gpt2 = LlamaConfig(**big), GPT2Config(n_layer=16, n_embd=512, n_head=2, vocab_size=9)
    model = GPT2LMHeadModel(gpt2) if is_transposed else LlamaForCausalLM(llama)
    model.save_pretrained(folder, max_shard_size="32MB")
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert sum(sizes) > 6 * max(sizes)
    peak = int(python(PEAK, str(source), str(folder), cwd=source.parent))
    assert peak < 1.3 * max(sizes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes_are_kept(source: Path, dtype: torch.dtype) -> None:
    LlamaForCausalLM.from_pretrained(source).to(dtype).save_pretrained(source)
    import_folder(source, source.parent / "mine")
    assert {p.dtype for p in zoo.load(source.parent / "mine").parameters()} == {dtype}


def test_a_model_that_was_trained_further_is_exported(source: Path) -> None:
    mine = source.parent / "mine"
    import_folder(source, mine)
    model = zoo.load(mine)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    zoo.save(model, mine)
    export_folder(mine, source.parent / "back")
    theirs = load_file(source / "model.safetensors")
    ours = load_file(source.parent / "back/model.safetensors")
    assert all(torch.equal(theirs[name] + 1.0, ours[name]) for name in theirs)


def test_experts_that_were_stacked_come_back(source: Path) -> None:
    MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=3)).save_pretrained(source)
    import_folder(source, source.parent / "mine")
    export_folder(source.parent / "mine", source.parent / "back")
    theirs = load_file(source / "model.safetensors")
    ours = load_file(source.parent / "back/model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_old_spellings_come_back(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=19,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=9,
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "source")

    def to_old(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)

    change_tensors(tmp_path / "source", to_old)
    import_folder(tmp_path / "source", tmp_path / "mine")
    export_folder(tmp_path / "mine", tmp_path / "back")
    theirs, ours = (load_file(tmp_path / f / "model.safetensors") for f in ("source", "back"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_an_old_spelling_beside_the_new_one(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=19, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    BertForMaskedLM(config).save_pretrained(tmp_path / "source")
    new = "bert.embeddings.LayerNorm.weight"
    old = new.replace("weight", "gamma")
    change_tensors(tmp_path / "source", lambda t: t.update({old: t[new].clone()}))
    assert "a tensor under its old and its new name" in refused(tmp_path / "source")


def test_a_config_in_the_other_words_of_its_class(source: Path) -> None:
    """transformers reads `hidden_size` as GPT-2's `n_embd`."""
    sizes = {"n_embd": 8, "n_layer": 3, "n_head": 2, "n_positions": 9}
    GPT2LMHeadModel(GPT2Config(vocab_size=19, **sizes)).save_pretrained(source)
    (source / "generation_config.json").unlink(missing_ok=True)
    import_folder(source, source.parent / "one", name="same")
    change_config(source, n_embd=..., n_layer=..., hidden_size=8, num_hidden_layers=3)
    assert AutoConfig.from_pretrained(source).n_embd == 8
    import_folder(source, source.parent / "two", name="same")
    one, two = (zoo.load(source.parent / name).spec for name in ("one", "two"))
    assert one == two


def test_threads_convert_in_memory_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transposed tensors, each of which is read while another is under way."""
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9, "vocab_size": 19}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "source")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    import_folder(tmp_path / "source", tmp_path / "one", name="same")
    at_once = Reader.read

    def slowly(reader: Reader, tensor: Stored, buffer: memoryview) -> None:
        at_once(reader, tensor, buffer)
        time.sleep(0.01)

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(Reader, "read", slowly)
    import_folder(tmp_path / "source", tmp_path / "two", name="same")
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_the_tokenizer_travels_along(source: Path) -> None:
    (source / "tokenizer.json").write_bytes(b'{"a": 1}\r\n')
    (source / "setup.py").write_text("raise SystemExit")
    mine, back = source.parent / "mine", source.parent / "back"
    import_folder(source, mine)
    assert sorted(path.name for path in mine.iterdir()) == ["model.safetensors", "tokenizer.json"]
    export_folder(mine, back)
    assert (back / "tokenizer.json").read_bytes() == b'{"a": 1}\r\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a" 1\n}', "tokenizer_config.json:2:7: error: not JSON"),
        ('{"a": ', "tokenizer_config.json:1:7: error: not JSON"),
        ("\xff", "not JSON"),
        ("", "tokenizer_config.json:1:1: error: not JSON"),
    ],
)
def test_a_tokenizer_file_that_is_no_json(source: Path, text: str, message: str) -> None:
    (source / "tokenizer_config.json").write_text(text, encoding="latin-1")
    assert message in refused(source, at="tokenizer_config.json")


def test_companions_that_cannot_be_read_are_told_together(source: Path) -> None:
    (source / "tokenizer.json").symlink_to("nowhere")
    (source / "vocab.json").mkdir()
    (source / "merges.txt").symlink_to("merges.txt")
    os.mkfifo(source / "added_tokens.json")
    told = refused(source, at="tokenizer.json")
    for name, reason in (
        ("tokenizer.json", "No such file or directory"),
        ("vocab.json", "not a regular file"),
        ("merges.txt", "Too many levels of symbolic links"),
        ("added_tokens.json", "not a regular file"),
    ):
        assert f"{source / name}: error: cannot be read: {reason}" in told


def test_what_lies_outside_is_not_imported(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("blobs")
    (outside / "secret").write_text("{}")
    (source / "vocab.txt").symlink_to(outside / "secret")
    told = refused(source, at="vocab.txt")
    assert f"{source / 'vocab.txt'}: error: it is a link that leads out of the folder" in told


def test_the_links_of_a_hubs_cache_are_followed(source: Path) -> None:
    """`snapshots/COMMIT` holds links to `blobs`, and that may not itself be a link elsewhere."""
    cache = source.parent / "models--owner--name"
    snapshot = cache / "snapshots" / ("0" * 40)
    (cache / "blobs").mkdir(parents=True)
    (source / "vocab.txt").write_text("a\n")
    snapshot.mkdir(parents=True)
    for path in source.iterdir():
        path.rename(cache / "blobs" / f"of-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/of-{path.name}")
    import_folder(snapshot, source.parent / "one")
    assert (source.parent / "one" / "vocab.txt").read_text() == "a\n"
    (cache / "blobs").rename(source.parent / "elsewhere")
    (cache / "blobs").symlink_to(source.parent / "elsewhere")
    assert "vocab.txt: error: it is a link that leads out" in refused(snapshot, at="vocab.txt")


def test_a_companion_that_can_no_longer_be_read_is_not_left_out_of_an_export(source: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    mine = source.parent / "mine"
    import_folder(source, mine)
    (mine / "tokenizer.json").unlink()
    (mine / "tokenizer.json").mkdir()
    with pytest.raises(zoo.WeightsError, match=r"tokenizer\.json: error: cannot be read: not a"):
        export_folder(mine, source.parent / "back")


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_family_file_that_cannot_be_read(source: Path, project: Path, kind: str) -> None:
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    family = project / "families/mine.toml"
    family.parent.mkdir()
    if kind == "directory":
        family.mkdir()
    else:
        family.symlink_to(family.name)
    with pytest.raises(zoo.SpecError, match="cannot be read: ") as error:
        import_folder(source, source.parent / "output")
    assert error.value.problems[0].place == Place(str(family))


def test_a_family_of_a_project_extends_a_shipped_one(project: Path) -> None:
    """Helium is a Llama with neighbours as the pairs of its rotary positions."""
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    (project / "families").mkdir()
    (project / "families/mine.toml").write_text(
        'extends = "llama"\nformat = 1\nmodel_type = ["mine"]\n'
        '[let]\nposition = "= rope(interleaved=true)"\n'
    )
    theirs = HeliumForCausalLM(HeliumConfig(**{**LLAMA, "head_dim": 4, "pad_token_id": 0})).eval()
    theirs.save_pretrained("source")
    config = Path("source/config.json")
    config.write_text(config.read_text().replace('"model_type": "helium"', '"model_type": "mine"'))
    for named in ("mine", "families/mine.toml"):
        assert cli.run(["lint", named, "--config", str(config)]) == 0
    import_folder("source", "mine")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        torch.testing.assert_close(zoo.load("mine").eval()(ids), theirs(ids).logits)


def test_two_families_of_one_name_or_model_type(project: Path) -> None:
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    (project / "families").mkdir()
    shipped = Path(__file__).parent.parent / "plugins/zoo_families/llama.toml"
    mine = project / "families/mine.toml"
    mine.write_text('extends = "llama"\nformat = 1\nmodel_type = ["mine", "llama"]\n')
    with pytest.raises(zoo.SpecError, match="two families read the `model_type` `llama`") as error:
        _ = Families(zoo.load_registry()).by_model_type
    (problem,) = error.value.problems
    assert problem.place == Place(str(mine))
    assert [place.file for _, place in problem.related] == [str(shipped)]
    mine.rename(mine.with_name("llama.toml"))
    with pytest.raises(zoo.SpecError, match=r"`llama` is there twice\n(.*\n)*.*help: .*rename one"):
        _ = Families(zoo.load_registry()).by_model_type


def toy_scope(project: Path, model_type: str, **config: Any) -> Scope:
    """The scope of the family of the docs, with three layers, for another model type."""
    page = (Path(__file__).parent.parent / "docs/write-a-family.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    text = text.replace('["toy"]', f'["{model_type}"]').replace("layers = 2", "layers = 3")
    (project / "toy.toml").write_text(text)
    (project / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    families = Families(zoo.load_registry())
    file = read_json(project / "config.json")
    return families.scope(read_family(project / "toy.toml"), file, frozenset())


@pytest.mark.parametrize("model_type", ["toy", "helium", "gpt_bigcode"])
def test_the_defaults_of_a_family_go_over_those_of_transformers(
    project: Path, model_type: str
) -> None:
    """Under each of the words for a key, as `n_layer` of the last is."""
    scope = toy_scope(project, model_type)
    spec = family_spec(scope, "m", zoo.load_registry()).to_dict()
    assert spec["vocab"] == 100
    assert (spec["decoder"]["n_layers"], spec["decoder"]["d_model"]) == (3, 32)
    if model_type == "gpt_bigcode":
        assert scope["n_layer"] == 3
        assert scope["n_inner"] is GPTBigCodeConfig().n_inner is None


def test_a_number_where_the_default_of_transformers_is_a_word(project: Path) -> None:
    """It is written by transformers itself, and refused if nothing reads it; what has a type in
    transformers has that type."""
    rank = Mamba2Config(hidden_size=32, num_heads=8, head_dim=8).time_step_rank
    scope = toy_scope(project, "mamba2", time_step_rank=rank, hidden_size=32)
    (problem,) = scope.config.unread(frozenset())
    assert problem.message.startswith(f"`time_step_rank` is {rank}, and nothing reads it")
    assert scope.config.unread(frozenset(["time_step_rank"])) == []
    with pytest.raises(zoo.WeightsError, match="`conv_kernel` must be an integer"):
        toy_scope(project, "mamba2", conv_kernel="4")


def test_a_built_model_cannot_be_exported(tmp_path: Path) -> None:
    spec = {"format": 1, "name": "m", "builder": "decoder", "vocab": 9, "n_layers": 1}
    model = zoo.build({**spec, "d_model": 8, "n_heads": 2, "d_ff": 8})
    zoo.save(model, tmp_path / "m")
    with pytest.raises(zoo.WeightsError, match="was not imported"):
        export_folder(tmp_path / "m", tmp_path / "back")


# --- what is refused: the configuration ---------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(zoo.WeightsError, match="no such folder"):
        import_folder(tmp_path / "nothing", tmp_path / "output")


@pytest.mark.parametrize("name", ["My model (1)", "ü", "a" * 129])
def test_a_folder_whose_name_no_model_can_have(source: Path, name: str) -> None:
    folder = source.rename(source.parent / name)
    with pytest.raises(
        zoo.ZooError, match=r"cannot be the name of a model(?s:.*)--name.*A to Z"
    ) as error:
        plan_import(folder)
    assert error.value.problems[0].place == Place(str(folder))
    with pytest.raises(zoo.ZooError, match="`ö` cannot be the name of a model"):
        import_folder(folder, source.parent / "ö")
    import_folder(folder, source.parent / "ö", name="named")
    assert zoo.load(source.parent / "ö").spec.name == "named"


def test_a_name_that_is_empty_is_not_that_of_the_folder(source: Path) -> None:
    with pytest.raises(zoo.ZooError, match="`` cannot be the name"):
        import_folder(source, source.parent / "out", name="")


def test_no_config(source: Path) -> None:
    (source / "config.json").unlink()
    told = refused(source)
    assert "this is no published checkpoint, whose folder would hold a config.json" in told


def test_a_folder_of_open_clip_alone(source: Path) -> None:
    """Beside a config.json, as laion publishes both, its files are left alone."""
    (source / "open_clip_config.json").write_text("{}")
    import_folder(source, source.parent / "both")
    shutil.rmtree(source.parent / "both")
    (source / "config.json").unlink()
    (source / "model.safetensors").rename(source / "open_clip_model.safetensors")
    told = refused(source)
    assert "open_clip_config.json says that the weights are in the form of OpenCLIP" in told
    assert "take a folder that holds the form of `transformers` too, with a config.json" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json:1:2: error: not JSON"),
        (
            "\N{BYTE ORDER MARK}{}",
            "config.json: error: not JSON: it begins with a byte order mark\n",
        ),
        ('{"a": 1,\n "a": 2}', "the key `a` is written twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[]", "an object is expected"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_config_that_is_no_json(source: Path, text: str, message: str) -> None:
    (source / "config.json").write_text(text)
    assert message in refused(source, at="config.json")


def test_config_that_is_not_utf8(source: Path) -> None:
    (source / "config.json").write_bytes(b'{"a": "\xff"}')
    assert "UTF-8" in refused(source, at="config.json").upper().replace("UTF8", "UTF-8")


def test_unknown_model_type(source: Path) -> None:
    change_config(source, model_type="lama")
    message = refused(source, at="config.json:")
    assert "no family reads the model_type `lama`" in message
    assert "did you mean `llama`?" in message
    assert "docs/write-a-family.md" in message


def test_a_model_type_that_no_family_reads_is_no_misspelt_one(source: Path) -> None:
    """Gemma 3n is another model than Gemma 3."""
    change_config(source, model_type="gemma3n")
    message = refused(source, at="config.json")
    assert "no family reads the model_type `gemma3n`" in message
    assert "did you mean" not in message


def test_a_source_that_is_no_folder(source: Path) -> None:
    with pytest.raises(zoo.WeightsError, match="this is not a folder"):
        import_folder(source / "config.json", source / "output")
    with pytest.raises(zoo.WeightsError, match=r"(?s)no such folder.*`zoo pull` fetches named"):
        import_folder(Path("openai/gpt2"), source / "output")


def test_no_model_type(source: Path) -> None:
    change_config(source, model_type=...)
    assert "`model_type` must say" in refused(source)


def test_wrong_types_are_told_at_once(source: Path) -> None:
    change_config(source, hidden_size="8", num_hidden_layers=2.5, mlp_bias=1)
    message = refused(source, at="config.json:")
    assert '`hidden_size` must be an integer, not "8"' in message
    assert "`num_hidden_layers` must be an integer, not 2.5" in message
    assert "`mlp_bias` must be true or false, not 1" in message


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers"])
def test_null_where_a_number_must_be(source: Path, key: str) -> None:
    change_config(source, **{key: None})
    assert f"`{key}` must be an integer, not null" in refused(source, at="config.json:")


def test_null_under_the_other_word_of_its_class(source: Path) -> None:
    """transformers reads `hidden_size` as GPT-2's `n_embd`."""
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2)).save_pretrained(source)
    change_config(source, n_embd=..., hidden_size=None)
    assert "`hidden_size` must be an integer, not null" in refused(source, at="config.json:")


def test_null_that_transformers_takes(source: Path) -> None:
    """A window of null means no window, although the default has one."""
    model = MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=None))
    model.save_pretrained(source)
    change_config(source, sliding_window=None)
    assert MistralConfig().sliding_window is not None
    import_folder(source, source.parent / "mine")
    ids = torch.arange(19)[None]
    with torch.no_grad():
        ours = zoo.load(source.parent / "mine").eval()(ids)
        assert torch.allclose(ours, model.eval()(ids).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("hidden_size", 0, "`d_model` must be at least 1, not the integer `0`"),
        ("rms_norm_eps", 0, "`eps` must be greater than 0, not the integer `0`"),
        ("hidden_act", "siluu", "the activation `siluu` is not known"),
        ("num_hidden_layers", 10**9, "more than 100,000 numbers"),  # in a named value of the family
        ("rope_parameters", {"rope_type": "x"}, "the rope_type `x` is not known"),
    ],
)
def test_an_impossible_value_is_told_where_it_stands(
    source: Path, key: str, value: Any, told: str
) -> None:
    change_config(source, **{key: value})
    lines = (source / "config.json").read_text().split("\n")
    (line,) = [number for number, text in enumerate(lines, 1) if text.startswith(f'  "{key}":')]
    message = refused(source, at=f"config.json:{line}:3")
    assert told in message
    assert re.search(r"/llama\.toml:\d+:\d+: note: read by the family\n", message)


def test_the_place_is_that_of_the_key_of_the_object(tmp_path: Path) -> None:
    """Not that of a key of the same name in another object, nor that of a string."""
    text = r"""{"torch": ["hidden", {"hidden": 1}], "note": "\"hidden\": 2",
 "text_config": {"hidden": {"hidden": 3}, "deep": 4},
 "hi\u0064den": "8"}"""
    (tmp_path / "config.json").write_text(text)
    file = read_json(tmp_path / "config.json")
    place = file.place("hidden")
    assert (place.line, place.column, place.width) == (3, 2, len(r'"hi\u0064den"'))
    place = file.place("text_config", "hidden", "hidden")
    assert (place.line, place.column) == (2, 29)
    assert file.place("deep").line is None


def test_places_take_no_more_memory_for_keys_that_are_deep_inside(tmp_path: Path) -> None:
    text = '{"a":' * 900 + json.dumps({f"k{n}": n for n in range(10_000)}) + "}" * 900
    file = parse_json(tmp_path / "config.json", text.encode())
    tracemalloc.start()
    place = file.place(*["a"] * 900, "k9999")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (place.line, place.column) == (1, text.index('"k9999"') + 1)
    assert most < 20_000_000  # the path of each key would be 72 MB


def test_a_key_twice_among_many_is_told_fast(tmp_path: Path) -> None:
    keys = [*(f'"k{n}": 1' for n in range(100_000)), '"k99999": 2']
    start = time.process_time()
    with pytest.raises(zoo.WeightsError, match="the key `k99999` is written twice"):
        parse_json(tmp_path / "config.json", f"{{{', '.join(keys)}}}".encode())
    # Not a measure of speed: a quadratic algorithm takes minutes.
    assert time.process_time() - start < 20


def test_a_json_file_has_at_most_10_mb(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}".ljust(10_000_000))
    assert read_json(path).data == {}
    path.write_bytes(b"{}".ljust(10_000_001))
    with pytest.raises(zoo.WeightsError, match="larger than 10,000,000 bytes"):
        read_json(path)


def test_what_is_made_of_several_values_leads_to_the_family_and_the_config(source: Path) -> None:
    change_config(source, head_dim=None, hidden_size=1)  # which is divided by the number of heads
    message = refused(source, at="/")
    assert "llama.toml:" in message
    assert f"{source}/config.json: note: made for this configuration" in message


def test_a_named_value_that_is_known_already_is_made_of_the_same_keys(source: Path) -> None:
    families = Families(zoo.load_registry())
    family = families.family("llama")
    scope = families.scope(family, read_json(source / "config.json"), frozenset())
    for _ in range(2):
        with scope.reading() as keys:
            assert scope["n_heads"] == 2
        assert keys == {"num_attention_heads"}
    assert "num_attention_heads" in scope.config.read


def test_what_a_rule_has_made_is_not_filled_with_zeros(source: Path) -> None:
    families, keys = Families(zoo.load_registry()), find_tensors(source).keys()
    copy = Rule(hf="old.weight", zoo="decoder.norm.weight", copies=True, missing="zeros")
    family = with_rules(families.family("llama"), {"copy": copy})
    scope = families.scope(family, read_json(source / "config.json"), frozenset(keys))
    spec = family_spec(scope, "small", zoo.load_registry())
    assert make_plan(spec, scope, keys, Place("")).zeros == []


@pytest.mark.parametrize("n_copies", [2, 1])
def test_copies_of_tensors_that_are_stacked(source: Path, n_copies: int) -> None:
    """Each is the copy of the one with its number."""
    families = Families(zoo.load_registry())
    MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=2)).save_pretrained(source)
    copies = Rule(
        hf="{@}layers.{i}.copies.{e}.weight",
        zoo="decoder.layers.{i}.ffn.experts.gate_proj.weight",
        copies=True,
    )
    family = with_rules(families.family("mixtral"), {"copies": copies})
    names = [f"model.layers.1.copies.{number}.weight" for number in range(n_copies)]
    keys = {*find_tensors(source), *names}
    scope = families.scope(family, read_json(source / "config.json"), frozenset(keys))
    spec = family_spec(scope, "small", zoo.load_registry())
    originals = [f"model.layers.1.block_sparse_moe.experts.{e}.w1.weight" for e in range(2)]
    if n_copies == 2:
        plan = make_plan(spec, scope, keys, Place(""))
        assert plan.copies == dict(zip(names, originals, strict=True))
    else:
        with pytest.raises(zoo.WeightsError) as error:
            make_plan(spec, scope, keys, Place(""))
        told = f"1 tensor such as `{names[0]}` cannot be the copies of 2 such as `{originals[0]}`"
        assert told in str(error.value)


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("model.layers.0.mlp.up_proj.weight", True),
        ("{@}layers.0.mlp.up_proj.weight", True),
        ("model.layers.*.up_proj.weight", True),
        ("*.mlp.*.weight", True),
        ("*", True),
        ("model.layers.*.up_proj", False),
        ("layers.0.mlp.up_proj.weight", False),
        ("*proj*proj*weight", False),
        ("model?layers.0.mlp.up_proj.weight", False),
        ("[m]odel.layers.0.mlp.up_proj.weight", False),
    ],
)
def test_whether_a_tensor_is_present(source: Path, name: str, there: bool) -> None:
    families, key = Families(zoo.load_registry()), "model.layers.0.mlp.up_proj.weight"
    family = replace(families.family("llama"), prefixes=("model.",))
    scope = families.scope(family, read_json(source / "config.json"), frozenset([key]))
    assert scope.functions["present"](name) is there


def test_a_name_with_many_stars_is_looked_for_in_linear_time(source: Path) -> None:
    families = Families(zoo.load_registry())
    config, keys = read_json(source / "config.json"), frozenset(["a" * 150])
    scope = families.scope(families.family("llama"), config, keys)
    start = time.process_time()
    assert not scope.functions["present"]("*a" * 5 + "*b")
    # Not a measure of speed: to try all ways to match takes a minute, and years with more stars.
    assert time.process_time() - start < 20


@pytest.mark.parametrize("expression", ["join(text, texts)", "round(5, -10 ** 6)"])
def test_a_function_of_a_large_result_is_refused_at_once(source: Path, expression: str) -> None:
    families = Families(zoo.load_registry())
    family = families.family("llama")
    values = {"text": "a" * 10_000, "texts": [""] * 10_000}
    let = {name: (value, family.spec.document) for name, value in values.items()}
    scope = families.scope(replace(family, let=let), read_json(source / "config.json"), frozenset())
    tracemalloc.start()
    try:
        with pytest.raises(zoo.SpecError, match="has no value"):
            scope.evaluate(expression, family.spec.document, ())
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_further_rules_do_not_read_the_family_again(project: Path) -> None:
    path = project / "mine.toml"
    path.write_text('format = 1\nmodel_type = ["mine"]\n[spec]\n[weights]\n')
    family = read_family(path)
    path.unlink()
    found = with_rules(family, {"copy": Rule(hf="a", zoo="b")})
    place = found.rules["copy"].place
    assert (place.file, place.line, place.quote) == (str(path), 4, "[weights]")


def test_a_value_that_nothing_reads(source: Path) -> None:
    change_config(source, model_type="gpt2", summary_type="mean")
    assert '`summary_type` is "mean", and nothing reads it' in refused_gpt2(source)


def test_a_quantised_checkpoint(source: Path) -> None:
    """With one error, whatever else its tensors are."""
    change_config(source, quantization_config={"quant_method": "aqlm"})
    change_tensors(source, lambda tensors: tensors.update(quant_state=torch.ones(1)))
    told = refused(source, at="config.json:")
    assert "the weights are quantized by `aqlm`, which is not read" in told
    assert told.count("error:") == 1
    assert "model.dequantize()" in told


def test_an_adapter_of_a_model_that_the_zoo_has_saved(source: Path) -> None:
    """It fits the checkpoint that an export makes of the model."""
    (source / "config.json").unlink()
    for adapter, help_ in (
        (None, "holds weights; if the zoo has saved them, `zoo show"),
        (source.parent / "adapter", f"`zoo export {source} --to hf -o DIR` writes one"),
    ):
        with pytest.raises(zoo.WeightsError, match="no published checkpoint") as error:
            import_folder(source, source.parent / "out", adapter=adapter)
        assert help_ in (error.value.problems[0].help or "")


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter(source: Path, alone: bool) -> None:
    """transformers applies it to the weights beside it, or to those of the model that it names."""
    (source / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if alone:
        (source / "model.safetensors").rename(source / "adapter_model.safetensors")
        (source / "config.json").unlink()
    told = refused(source)
    assert "adapter_config.json says that there is an adapter" in told
    assert "`--adapter` names the folder of an adapter" in told


def test_weights_in_a_file_of_another_name(source: Path) -> None:
    """transformers would read that file, and not the one beside it."""
    shutil.copy(source / "model.safetensors", source / "other.safetensors")
    change_config(source, transformers_weights="other.safetensors")
    assert "`transformers_weights` is" in refused(source, at="config.json:")


def refused_gpt2(source: Path) -> str:
    config = GPT2Config(
        vocab_size=19, n_embd=8, n_layer=1, n_head=2, n_positions=9, add_cross_attention=False
    )
    GPT2LMHeadModel(config).save_pretrained(source)
    (source / "generation_config.json").unlink(missing_ok=True)
    change_config(source, summary_type="mean")
    return refused(source, at="config.json:")


# --- what is refused: the tensors ---------------------------------------------------------------

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        (Q, "decoder.layers.0.self_attn.q_proj.weight"),
        ("model.norm.weight", "decoder.norm.weight"),  # for whose rule no tensor remains
    ],
)
def test_missing_tensor(source: Path, name: str, becomes: str) -> None:
    change_tensors(source, lambda t: t.pop(name))
    assert f"no tensor that becomes `{becomes}`" in refused(source)


def test_missing_expert(source: Path) -> None:
    """Stacked tensors are numbered, and no number may be missing."""
    keys = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    config = MixtralConfig(**keys, num_hidden_layers=1, num_local_experts=11)
    MixtralForCausalLM(config).save_pretrained(source)
    stored = load_file(source / "model.safetensors")
    import_folder(source, source.parent / "whole")
    shutil.rmtree(source.parent / "whole")
    change_tensors(
        source,
        lambda t: t.update(
            {name.replace("experts.4.", "experts.11."): t.pop(name) for name in stored}
        ),
    )
    assert "counted from 0 are missing beside" in refused(source)


def test_an_expert_that_is_transposed(source: Path) -> None:
    """It has as many bytes as the others, with which it is stacked."""
    keys = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    config = MixtralConfig(**keys, num_hidden_layers=1, num_local_experts=2)
    MixtralForCausalLM(config).save_pretrained(source)
    stored = load_file(source / "model.safetensors")
    name = next(name for name in stored if ".experts.1.w1." in name)
    change_tensors(source, lambda t: t.update({name: t[name].T.contiguous()}))
    assert f"`{name}` has another shape than `{name.replace('.1.w1', '.0.w1')}`" in refused(source)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_expert_of_another_dtype(source: Path, dtype: torch.dtype) -> None:
    MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=2)).save_pretrained(source)
    stored = load_file(source / "model.safetensors")
    name = next(name for name in stored if ".experts.1.w1." in name)
    change_tensors(source, lambda t: t.update({name: t[name].to(dtype)}))
    message = f"and `{name.replace('.1.w1', '.0.w1')}`, beside it, is not"
    assert message in refused(source)


def test_extra_tensor(source: Path) -> None:
    change_tensors(source, lambda t: t.update({"model.extra.weight": torch.ones(2)}))
    assert "has no rule for the tensor `model.extra.weight`" in refused(source)
    extra = {f"model.{a}.extra.{b}.weight": torch.ones(2) for a in range(2) for b in range(2)}
    change_tensors(source, lambda t: t.update({**extra, "model.0.extra.x": torch.ones(1)}))
    message = refused(source)
    assert message.count("error:") == 3
    more = "and none for 3 more that differ from it only in numbers"
    assert f"has no rule for the tensor `model.0.extra.0.weight`, {more}\n" in message


def test_tensor_that_the_model_has_no_place_for(source: Path) -> None:
    change_tensors(source, lambda t: t.update({Q.replace("weight", "bias"): torch.ones(8)}))
    message = refused(source)
    assert f"no place for the tensor `{Q.replace('weight', 'bias')}`" in message
    assert "llama.toml:" in message


def test_misshapen_tensor(source: Path) -> None:
    change_tensors(source, lambda t: t.update({Q: torch.ones(8, 9)}))
    message = refused(source)
    assert Q in message
    assert "[8, 9]" in message
    assert "[8, 8]" in message
    assert re.search(r"llama\.toml:\d+:\d+: note: by this rule", message)


def gpt2(folder: Path) -> Path:
    """Return a checkpoint whose matrices are transposed."""
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9, "vocab_size": 19}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder)
    return folder


def test_misshapen_tensor_that_is_transposed(tmp_path: Path) -> None:
    name = "transformer.h.0.mlp.c_fc.weight"
    source = gpt2(tmp_path / "source")
    change_tensors(source, lambda t: t.update({name: torch.ones(8, 33)}))
    message = refused(source)
    assert f"`{name}` makes `decoder.layers.0.ffn.up_proj.weight` [33, 8]" in message
    assert "the spec says [32, 8]" in message


@pytest.mark.parametrize("same", [True, False])
def test_a_copy_of_a_tensor_that_is_transposed(project: Path, same: bool) -> None:
    shipped, own = Path(__file__).parent.parent / "plugins/zoo_families", project / "families"
    own.mkdir()
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    (own / "base.toml").write_text((shipped / "causal_lm.toml").read_text())
    text = (shipped / "gpt2.toml").read_text().replace('"causal_lm"', '"base"')
    rule = (
        'up_copy = { hf = "{@}h.{i}.mlp.copy.weight", zoo = "decoder.layers.{i}.ffn.up_proj.weight"'
        ", transpose = true, copies = true }\n"
    )
    text = text.replace('"gpt2", "gpt-sw3"', '"twice"')
    text = text.replace("\n[weights]\n", f"\n[weights]\n{rule}")
    (own / "twice.toml").write_text(text)
    source = gpt2(project / "checkpoint" / "source")
    change_config(source, model_type="twice")
    own_name, copy_name = (f"transformer.h.0.mlp.{name}.weight" for name in ("c_fc", "copy"))
    change = 0.0 if same else 1.0
    change_tensors(source, lambda t: t.update({copy_name: t[own_name] + change}))
    if same:
        import_folder(source, project / "mine")
    else:
        assert "must be the same as" in refused(source)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float8_e4m3fn])
def test_tensor_of_a_wrong_type(source: Path, dtype: torch.dtype) -> None:
    change_tensors(source, lambda t: t.update({Q: torch.ones(8, 8).to(dtype)}))
    assert f"the tensor `{Q}` is " in refused(source)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32])
def test_what_is_dropped_may_have_any_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """As the causal masks that transformers saved with GPT-2 have had."""
    source = gpt2(tmp_path / "source")
    import_folder(source, tmp_path / "without")
    mask = torch.ones(1, 1, 9, 9).tril().to(dtype)
    change_tensors(source, lambda t: t.update({"transformer.h.0.attn.bias": mask}))
    import_folder(source, tmp_path / "with")
    wanted, found = (load_file(tmp_path / f / "model.safetensors") for f in ("without", "with"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_tied_copies_that_differ(source: Path) -> None:
    change_config(source, tie_word_embeddings=True)
    message = refused(source)
    assert "`model.embed_tokens.weight` must be the same as `lm_head.weight`" in message
    assert "let it say that they are not tied" in message
    change_config(source, tie_word_embeddings=False)  # as the message says
    import_folder(source, source.parent / "mine")


def test_tied_copies_that_agree(source: Path) -> None:
    change_config(source, tie_word_embeddings=True)

    change_tensors(source, with_a_copy_of_the_table)
    import_folder(source, source.parent / "mine")
    export_folder(source.parent / "mine", source.parent / "back")
    theirs, ours = (load_file(f / "model.safetensors") for f in (source, source.parent / "back"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


@pytest.mark.parametrize(
    ("own", "copy", "same"),
    [(0.0, -0.0, False), (float("nan"), float("nan"), True), (1.0, 1.0, True)],
)
def test_tied_copies_are_compared_by_their_bytes(
    source: Path, own: float, copy: float, same: bool
) -> None:
    """Export writes one of the two for both."""
    change_config(source, tie_word_embeddings=True)

    def tie(tensors: dict[str, torch.Tensor]) -> None:
        table = tensors["model.embed_tokens.weight"]
        table[3, 2] = own
        tensors["lm_head.weight"] = table.clone()
        tensors["lm_head.weight"][3, 2] = copy

    change_tensors(source, tie)
    if same:
        import_folder(source, source.parent / "mine")
    else:
        assert "must be the same as" in refused(source)


def roformer(tmp_path: Path) -> Path:
    """Return a checkpoint with a table of its angles; at far positions, float32 angles differ."""
    sizes = {"vocab_size": 19, "hidden_size": 16, "embedding_size": 16, "intermediate_size": 12}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = RoFormerConfig(**sizes, **layers, max_position_embeddings=1536)
    RoFormerForMaskedLM(config).save_pretrained(tmp_path / "source")
    return tmp_path / "source"


ANGLES = "roformer.encoder.embed_positions.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_table_of_angles_that_is_computed(tmp_path: Path, dtype: torch.dtype) -> None:
    source = roformer(tmp_path)
    change_tensors(source, lambda t: t.update({ANGLES: t[ANGLES].to(dtype)}))
    import_folder(source, tmp_path / "mine")


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.roll(1, 0),
        lambda table: table.index_fill(0, torch.tensor([1535]), 0.5),
        lambda table: torch.cat([table[:, 4:], table[:, :4]], 1),
        lambda table: table[:, :6].clone(),
        lambda table: table.long(),
        lambda table: table[0, 0].clone(),
    ],
)
def test_a_table_of_angles_that_is_another(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    source = roformer(tmp_path)
    change_tensors(source, lambda t: t.update({ANGLES: change(t[ANGLES])}))
    message = refused(source)
    assert f"`{ANGLES}` is not the table that the model computes" in message


@pytest.mark.parametrize("table", ["encoder.position_1.table", "encoder.position_0.tables"])
def test_a_computed_table_that_no_module_has(tmp_path: Path, table: str) -> None:
    found = plan_import(roformer(tmp_path))
    found.plan.computed[ANGLES] = table
    message = f"the model has no `{table}`, of which `{ANGLES}` would be a copy"
    with pytest.raises(zoo.WeightsError, match=re.escape(message)):
        save_import(found, tmp_path / "mine")


def test_what_is_computed_for_a_number_of_rows_is_not_exported(tmp_path: Path) -> None:
    """An export would not know the number."""
    found = plan_import(roformer(tmp_path))
    found.plan.dropped.remove(ANGLES)
    with pytest.raises(zoo.WeightsError, match=f"the rule of `{ANGLES}` needs `drop`"):
        save_import(found, tmp_path / "mine")


def test_a_tied_copy_of_another_shape_is_none(source: Path) -> None:
    """Its bytes are the same."""
    change_config(source, tie_word_embeddings=True)

    def tie(tensors: dict[str, torch.Tensor]) -> None:
        table = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = table.clone()
        tensors["model.embed_tokens.weight"] = table.reshape(table.shape[::-1])

    change_tensors(source, tie)
    assert "`model.embed_tokens.weight` must be the same as" in refused(source)


def test_a_tied_copy_of_another_dtype_is_none(source: Path) -> None:
    """Its bytes are the same."""
    change_config(source, tie_word_embeddings=True)

    def tie(tensors: dict[str, torch.Tensor]) -> None:
        table = tensors["model.embed_tokens.weight"].half()
        tensors["model.embed_tokens.weight"] = table
        tensors["lm_head.weight"] = table.view(torch.bfloat16).clone()

    change_tensors(source, tie)
    assert "`model.embed_tokens.weight` must be the same as" in refused(source)


def test_each_byte_of_a_tensor_is_read_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a tensor that is stored twice or transposed."""
    change_config(source, tie_word_embeddings=True)

    change_tensors(source, with_a_copy_of_the_table)
    raw = (source / "model.safetensors").read_bytes()
    spans: list[tuple[int, int]] = []
    preadv = os.preadv

    def recorded(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        spans.append((offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", recorded)
    import_folder(source, source.parent / "mine")
    ends = [8 + int.from_bytes(raw[:8], "little"), *(end for _, end in sorted(spans))]
    assert [start for start, _ in sorted(spans)] == ends[:-1]
    assert ends[-1] == len(raw)


def test_pickle(source: Path) -> None:
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    message = refused(source)
    assert "`pytorch_model.bin`, which is not read" in message
    assert "safetensors" in message


def test_no_weights(source: Path) -> None:
    (source / "model.safetensors").unlink()
    message = refused(source)
    assert "there is no model.safetensors" in message
    assert "help" not in message


@pytest.mark.parametrize("name", ["consolidated.safetensors", "model-Q4_K_M.gguf"])
def test_weights_under_another_name(source: Path, name: str) -> None:
    (source / "model.safetensors").rename(source / name)
    assert f"there is `{name}`; read are model.safetensors, and " in refused(source)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs(source: Path, name: str) -> None:
    """Of a clone that was made without it."""
    pointer = f"version https://git-lfs.example/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (source / name).write_text(pointer)
    assert "a pointer of Git LFS is in the place of the file" in refused(source, at=name)


def test_a_pointer_of_git_lfs_in_the_place_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.example/spec/v1\n")
    with pytest.raises(zoo.WeightsError, match=r"`git lfs pull` .* fetches the file itself"):
        zoo.load(path)


def test_a_missing_tensor_is_told_by_its_name_in_the_checkpoint(source: Path) -> None:
    change_tensors(source, lambda t: t.pop("lm_head.weight"))
    assert (
        "the checkpoint has no tensor that becomes `head.out.weight`, where it is called "
        "`lm_head.weight`"
    ) in refused(source)


def test_a_header_that_nests_without_end(source: Path) -> None:
    text = b"[" * 100_000
    (source / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "not a whole safetensors file" in refused(source, at="model.safetensors")


def test_bytes_that_the_header_does_not_tell_of(source: Path) -> None:
    with (source / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "not a whole safetensors file" in refused(source, at="model.safetensors")


@pytest.mark.parametrize("kept", [4, 100, -8])
def test_cut_file(source: Path, kept: int) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "not a whole safetensors file" in refused(source, at="model.safetensors")


def change_entries(source: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change only the header of the file."""
    path = source / "model.safetensors"
    raw = path.read_bytes()
    length = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:length])
    change(entries)
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[length:])


@pytest.mark.parametrize(
    "offsets",
    [[0, 255], [4, 260], [-256, 0], [256, 0], [0.0, 256.0], [True, 256], [0], "ab", [1 << 80] * 2],
)
def test_offsets_where_no_tensor_can_be(source: Path, offsets: Any) -> None:
    change_entries(source, lambda entries: entries[Q].update(data_offsets=offsets))
    assert "not a whole safetensors file" in refused(source, at="model.safetensors")


@pytest.mark.parametrize("shift", [4, -4])
def test_a_tensor_that_begins_elsewhere(source: Path, shift: int) -> None:
    """It would end where it does, and be read from the wrong place."""

    def move(entries: dict[str, Any]) -> None:
        entries[Q]["data_offsets"][0] += shift

    change_entries(source, move)
    assert "is not where its bytes can be" in refused(source, at="model.safetensors")


def test_tensors_that_overlap(source: Path) -> None:
    def swap(entries: dict[str, Any]) -> None:
        entries[Q]["data_offsets"] = entries[Q.replace("q_proj", "o_proj")]["data_offsets"]

    change_entries(source, swap)
    assert "is not where its bytes can be" in refused(source, at="model.safetensors")


def test_threads_read_one_open_file_that_is_closed_at_the_end(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = find_tensors(source)[Q]
    buffers = [memoryview(bytearray(tensor.n_bytes)) for _ in range(4)]
    opened: list[OpenFile] = []
    at_once = OpenFile.open

    def slowly(path: Path, stack: ExitStack) -> OpenFile:
        time.sleep(0.05)
        opened.append(at_once(path, stack))
        return opened[-1]

    monkeypatch.setattr(OpenFile, "open", slowly)
    with Reader() as reader, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda buffer: reader.read(tensor, buffer), buffers))
    assert [file.file.closed for file in opened] == [True]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: os.truncate(path, 2000), "it has become shorter while it was read"),
        (lambda path: path.open("ab").write(b"x"), "it was written to while it was read"),
    ],
)
def test_a_file_that_changes_meanwhile(
    source: Path, change: Callable[[Path], Any], told: str
) -> None:
    output = source.parent / "output"
    done = False

    def on_bytes(_: int) -> None:
        nonlocal done
        if not done:
            change(source / "model.safetensors")
        done = True

    with (
        patch("os.cpu_count", return_value=1),  # so that all others are read after the change
        pytest.raises(zoo.WeightsError, match=told) as error,
    ):
        import_folder(source, output, on_bytes=on_bytes)
    assert str(error.value.problems[0].place).endswith("source/model.safetensors")
    assert not output.exists()


# --- what is refused: the index of shards -------------------------------------------------------


@pytest.fixture
def sharded(source: Path) -> Path:
    model = LlamaForCausalLM.from_pretrained(source)
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="1KB")
    return source


def change_index(source: Path, change: Callable[[dict[str, str]], Any]) -> None:
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index, indent=2))


def test_missing_shard(sharded: Path) -> None:
    first = min(sharded.glob("model-*.safetensors"))
    first.unlink()
    message = refused(sharded, at="model.safetensors.index.json:")
    assert f"the index names `{first.name}`, which is missing" in message


def test_an_index_without_any_shard(sharded: Path) -> None:
    for path in sharded.glob("model-*.safetensors"):
        path.unlink()
    message = refused(sharded, at="model.safetensors.index.json:")
    assert "help: there is no .safetensors file in the folder" in message


def test_a_shard_whose_name_is_too_long_for_a_file(sharded: Path) -> None:
    change_index(sharded, lambda files: files.update({Q: f"{'a' * 300}.safetensors"}))
    message = refused(sharded, at="model.safetensors.index.json:")
    assert re.search(r"the index names `a+\.\.\.`, which is missing", message)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "x.bin"]
)
def test_shard_outside_of_the_folder(sharded: Path, name: str) -> None:
    (sharded.parent / "x.safetensors").write_bytes(b"")
    change_index(sharded, lambda files: files.update({Q: name}))
    with pytest.raises(zoo.WeightsError, match=r"is not the name of a \.safetensors file") as error:
        import_folder(sharded, sharded.parent / "output")
    assert Q in str(error.value)
    assert not (sharded.parent / "output").exists()


def test_index_and_shards_disagree(sharded: Path) -> None:
    change_index(sharded, lambda files: files.update({"model.ghost": files[Q]}))
    assert "has the tensor `model.ghost`" in refused(sharded, at="model.safetensors.index.json:")
    change_index(sharded, lambda files: (files.pop("model.ghost"), files.pop(Q)))
    assert f"holds the tensor `{Q}`, of which the index says nothing" in refused(sharded)


def test_an_index_of_other_shards_is_refused_fast(sharded: Path) -> None:
    shard = min(sharded.glob("model-*.safetensors")).name

    def seconds(n_tensors: int) -> float:
        change_index(
            sharded, lambda files: files.update({f"x.{n}": shard for n in range(n_tensors)})
        )
        start = time.process_time()
        with pytest.raises(zoo.WeightsError, match="which does not hold it"):
            find_tensors(sharded)
        return time.process_time() - start

    # The least of several, since a machine that pauses a process may count that as its work.
    few, many = (min(seconds(n) for _ in range(3)) for n in (500, 16_000))
    assert many < 200 * few  # linear work grows 32-fold, that of a quadratic algorithm 1,024-fold


def test_index_that_is_none(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "`weight_map` must map" in refused(sharded)


def test_an_output_that_is_there_stays(source: Path) -> None:
    (source.parent / "output").mkdir()
    (source.parent / "output/mine.txt").write_text("mine")
    with pytest.raises(zoo.ZooError, match="is there already"):
        import_folder(source, source.parent / "output")
    assert (source.parent / "output/mine.txt").read_text() == "mine"


def test_an_output_that_is_a_link_to_itself(source: Path) -> None:
    (source.parent / "output").symlink_to("output")
    with pytest.raises(zoo.ZooError, match=r"cannot write `.*output`: Not a directory"):
        import_folder(source, source.parent / "output")


def test_a_disk_that_fails_once_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all later writes succeed."""
    outcomes = iter([OSError(28, "No space left on device")])

    def sync(path: Path) -> None:
        if error := next(outcomes, None):
            raise error

    monkeypatch.setattr(tensor_writer, "sync", sync)
    monkeypatch.setattr(tensor_writer, "_SYNC_BYTES", 1)

    def write() -> None:
        with (
            (tmp_path / "file").open("xb") as file,
            tensor_writer.TensorWriter(file, {"x": 0}) as writer,
        ):
            for _ in range(1000):
                writer.write("x", [memoryview(b"12345678")])
                time.sleep(0.001)  # the disk is written by another thread

    with pytest.raises(OSError, match="No space left"):
        write()
