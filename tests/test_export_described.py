"""Export of models that were not imported, by their class in `transformers`, or a config.json that
describes them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from toy_encoders import words
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trials import Refused

import zoo
from zoo.cli import run
from zoo.families import scope as scope_module
from zoo.families import spec as spec_module
from zoo.families.registered import Families
from zoo.json_files import JsonFile

LLAMA = """
format = 1
name = "mine"
builder = "decoder"
vocab = 60
n_layers = 2
d_model = 32
n_heads = 4
n_kv_heads = 2
d_ff = 48
bias = false
dropout = 0.1
norm = { kind = "rms_norm", eps = 1e-5 }
position = { kind = "rotary", base = 500.0 }
ffn = "glu"
init = { kind = "normal", std = 0.3 }
"""
MIXTRAL = """
ffn = { kind = "moe", n_experts = 3, top_k = 2, router = { normalize = true } }
"""
GPT2 = """
format = 1
name = "mine"
builder = "decoder"
vocab = 60
max_length = 16
n_layers = 2
d_model = 32
n_heads = 4
d_ff = 128
position = "learned"
ffn = { kind = "mlp", activation = "gelu_tanh" }
head = { kind = "linear", tied = true }
init = { kind = "normal", std = 0.3 }
"""
BERT = """
format = 1
name = "mine"
builder = "encoder"
vocab = 60
max_length = 16
n_layers = 2
d_model = 32
n_heads = 4
d_ff = 48
pad_id = 0
norm_placement = "post"
norm = { kind = "layer_norm", eps = 1e-12 }
position = "learned"
ffn = { kind = "mlp", activation = "gelu" }
init = { kind = "normal", std = 0.3 }
[encoder.embedding]
n_types = 2
norm = { kind = "layer_norm", eps = 1e-12 }
[head]
kind = "classifier"
n_classes = 2
labels = ["bad", "good"]
"""
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OF_LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
OF_LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5}
OF_LLAMA |= {"rope_theta": 500.0}
OF_GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 60}
OF_GPT2 |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
OF_BERT = {**SIZES, "model_type": "bert", "architectures": ["BertForSequenceClassification"]}
OF_BERT |= {"intermediate_size": 48, "max_position_embeddings": 16}
OF_MIXTRAL = {**OF_LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
OF_MIXTRAL |= {"num_local_experts": 3, "num_experts_per_tok": 2}
SIX_HEADS = LLAMA.replace("n_heads = 4\nn_kv_heads = 2", "n_heads = 6").replace("32", "36")
"""With as many of keys: neither number of heads goes with the usual one of the other, 32 and 8."""
OF_MISTRAL = {**OF_LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
OF_MISTRAL |= {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 6}
MODELS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "llama": (LLAMA, OF_LLAMA, AutoModelForCausalLM),
    "mixtral": (LLAMA.replace('ffn = "glu"\n', MIXTRAL), OF_MIXTRAL, AutoModelForCausalLM),
    "mistral": (SIX_HEADS, OF_MISTRAL, AutoModelForCausalLM),
    "gpt2": (GPT2, OF_GPT2, AutoModelForCausalLM),
    "bert": (BERT, OF_BERT, AutoModelForSequenceClassification),
}


YARN = '"rotary_yarn", base = 500.0, factor = 4.0, original_length = 64'
LLAMA3 = '"rotary_llama3", base = 500.0, factor = 4.0, original_length = 64, low_freq_factor = 1.0'
GPT_NEOX = """
format = 1
name = "mine"
builder = "decoder"
vocab = 60
n_layers = 2
d_model = 32
n_heads = 4
d_ff = 48
norm_placement = "parallel"
position = { kind = "rotary", base = 500.0, fraction = 0.5 }
ffn = { kind = "mlp", activation = "gelu" }
init = { kind = "normal", std = 0.3 }
"""
OLMO = """
[decoder]
norm = { kind = "layer_norm", weight = false, bias = false }
self_attn = { clip = 2.0 }
"""
GEMMA3 = """
format = 1
name = "mine"
builder = "decoder"
vocab = 60
n_layers = 3
d_model = 32
n_heads = 4
d_ff = 48
bias = false
norm = { kind = "rms_norm", eps = 1e-5, zero_centered_weight = true }
norm_placement = "sandwich"
ffn = { kind = "glu", activation = "gelu_tanh" }
head = { kind = "linear", tied = true, softcap = 3.0 }
init = { kind = "normal", std = 0.3 }
[decoder]
embedding = { scale = "sqrt_d_model_rounded" }
position = { kind = "rotary", base = { per_layer = [900.0, 100.0, 900.0] } }
[decoder.self_attn]
qk_norm = { kind = "rms_norm", eps = 1e-5, zero_centered_weight = true }
window = { per_layer = ["none", 2, "none"] }
"""
RULES = (
    GEMMA3[: GEMMA3.index("position =")].replace("n_layers = 3", "n_layers = 4")
    + """
position = { kind = "rotary", base = 100.0 }
[decoder.self_attn]
qk_norm = { kind = "rms_norm", eps = 1e-5, zero_centered_weight = true }
window = 2
[[decoder.layers]]
at = [0]
self_attn.window = "none"
position.base = 900.0
[[decoder.layers]]
at = [2]
self_attn.window = "none"
position.base = 900.0
"""
)
ASIDE: dict[str, tuple[str, str]] = {
    # What `transformers` reads in `rope_parameters` alone.
    "gpt_neox": (GPT_NEOX, "GPTNeoXForCausalLM"),
    "yarn": (LLAMA.replace('"rotary", base = 500.0', YARN), "LlamaForCausalLM"),
    "llama3": (
        LLAMA.replace('"rotary", base = 500.0', f"{LLAMA3}, high_freq_factor = 4.0"),
        "LlamaForCausalLM",
    ),
    # What a family does not put into the spec unless it is stated.
    "olmo": (
        LLAMA.replace('norm = { kind = "rms_norm", eps = 1e-5 }\n', "") + OLMO,
        "OlmoForCausalLM",
    ),
    # A word for each layer, and positions by these words.
    "gemma3": (GEMMA3, "Gemma3ForCausalLM"),
    # A family states what the first layer has, and rules for the others.
    "rules": (RULES, "Gemma3ForCausalLM"),
}


def write(spec: str, config: dict[str, Any]) -> None:
    """Build a model of a spec into the folder `mine`, and write a config.json beside it."""
    model = zoo.build(zoo.read_spec(spec), seed=1)
    zoo.save(model, "mine")
    Path("config.json").write_text(json.dumps(config, indent=1))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_ones_own_becomes_one_of_transformers(name: str, project: Path) -> None:
    spec, config, of_transformers = MODELS[name]
    write(spec, config)
    words(project / "mine" / "tokenizer.json")
    assert run(["export", "mine", "--to", "hf", "--config", "config.json", "-o", "out"]) == 0
    theirs, told = of_transformers.from_pretrained("out", output_loading_info=True)
    assert not any(told.values()), told
    assert type(theirs).__name__ == config["architectures"][0]
    ids = torch.tensor([[2, 7, 9, 8, 3], [2, 11, 6, 12, 3]])
    with torch.no_grad():
        logits = theirs.eval()(ids).logits
        assert logits.std() > 0.1
        torch.testing.assert_close(zoo.load("mine").eval()(ids), logits, rtol=1e-4, atol=1e-5)
    assert Path("out/tokenizer.json").read_bytes() == Path("mine/tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_its_class_is_enough(name: str, project: Path) -> None:
    spec, config, of_transformers = MODELS[name]
    zoo.save(zoo.build(zoo.read_spec(spec), seed=1), "mine")
    (architecture,) = config["architectures"]
    assert run(["export", "mine", "--to", "hf", "--as", architecture, "-o", "out"]) == 0
    found = json.loads(Path("out/config.json").read_text())
    assert found.items() >= config.items()
    assert found["dtype"] == "float32"
    # Nothing is stated that is no field of the class, and what is padding stays.
    usual = type(of_transformers.from_pretrained("out").config)()
    assert found.keys() <= {*usual.to_dict(), *usual.attribute_map, "rope_theta"}
    assert found.get("pad_token_id") == {"bert": 0}.get(name)
    theirs, told = of_transformers.from_pretrained("out", output_loading_info=True)
    assert not any(told.values()), told
    ids = torch.tensor([[2, 7, 9, 8, 3], [2, 11, 6, 12, 3]])
    with torch.no_grad():
        logits = theirs.eval()(ids).logits
        torch.testing.assert_close(zoo.load("mine").eval()(ids), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ASIDE)
def test_tables_lists_and_options_are_found(name: str, project: Path) -> None:
    spec, architecture = ASIDE[name]
    zoo.save(zoo.build(zoo.read_spec(spec), seed=1), "mine")
    zoo.export_folder("mine", "out", architecture=architecture)
    theirs = AutoModelForCausalLM.from_pretrained("out").eval()
    ids = torch.tensor([[2, 7, 9, 8, 3, 40, 22, 1], [2, 11, 6, 12, 3, 5, 31, 4]])
    with torch.no_grad():
        logits = theirs(ids).logits
        assert logits.std() > 0.1
        torch.testing.assert_close(zoo.load("mine").eval()(ids), logits, rtol=1e-4, atol=1e-5)


def test_what_a_configuration_states_stays_and_the_rest_is_found(project: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    stated = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_parameters": rope}
    write(LLAMA, {**stated, "hidden_act": "swish", "max_position_embeddings": 77})
    zoo.export_folder("mine", "out", config="config.json")
    found = json.loads(Path("out/config.json").read_text())
    assert found.items() >= {**stated, "hidden_act": "swish", "max_position_embeddings": 77}.items()
    assert found["num_key_value_heads"] == 2
    assert "rope_theta" not in found


def test_the_tokenizer_has_its_special_tokens(project: Path) -> None:
    """`transformers` pads, masks and ends texts by what its configuration says."""
    masked = BERT[: BERT.index("[head]")] + '[head]\nkind = "mlm"\ntied = true\n'
    zoo.save(zoo.build(zoo.read_spec(masked)), "mine")
    words(Path("mine/tokenizer.json"))
    Path("mine/generation_config.json").write_text('{"bos_token_id": 2, "eos_token_id": [3, 4]}')
    zoo.export_folder("mine", "out", architecture="BertForMaskedLM")
    tokenizer = AutoTokenizer.from_pretrained("out")
    found = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.mask_token)
    assert found == ("[CLS]", "[SEP]", "[PAD]", "[MASK]")
    assert (tokenizer.unk_token, tokenizer.model_max_length) == ("[UNK]", 16)
    ids = tokenizer(["one", "one two"], padding=True)["input_ids"]
    assert ids[0][-1] == 0
    assert len(ids[0]) == len(ids[1])
    Path("mine/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    zoo.export_folder("mine", "own", architecture="BertForMaskedLM")
    own = Path("own/tokenizer_config.json").read_bytes()
    assert own == Path("mine/tokenizer_config.json").read_bytes()


def test_a_special_token_that_is_normalized_has_its_own_name(project: Path) -> None:
    """Under another, `transformers` would add a token."""
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    words(Path("mine/tokenizer.json"))
    made: Any = tokenizers.Tokenizer.from_file("mine/tokenizer.json")
    made.normalizer = tokenizers.normalizers.Prepend("_")
    made.add_special_tokens([tokenizers.AddedToken("[SEP]", normalized=True)])
    made.save("mine/tokenizer.json")
    Path("mine/generation_config.json").write_text('{"eos_token_id": 3}')
    zoo.export_folder("mine", "out", architecture="LlamaForCausalLM")
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("[SEP]", 3)


def test_special_tokens_are_those_of_the_model(project: Path) -> None:
    """The defaults of `transformers` are those of another vocabulary."""
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    zoo.export_folder("mine", "unknown", architecture="LlamaForCausalLM")
    found = json.loads(Path("unknown/config.json").read_text())
    assert (found["bos_token_id"], found["eos_token_id"]) == (None, None)
    Path("mine/generation_config.json").write_text('{"bos_token_id": 5, "eos_token_id": [6, 7]}')
    zoo.export_folder("mine", "known", architecture="LlamaForCausalLM")
    theirs = AutoModelForCausalLM.from_pretrained("known")
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (5, [6, 7])


def test_a_class_that_is_another_model_is_refused(project: Path, refused: Refused) -> None:
    zoo.save(zoo.build(zoo.read_spec(LLAMA.replace('"glu"', '"mlp"'))), "mine")
    told = refused("export", "mine", "--to", "hf", "--as", "LlamaForCausalLM", "-o", "out")
    assert "model.safetensors: error: `LlamaForCausalLM` of `transformers` is another" in told
    assert '`decoder.block.ffn.kind` is "glu" there, and "mlp" in mine' in told
    assert told.count(" there, and ") == 1  # what can be the same is
    assert "help: the configuration was looked for, and this is the nearest: `--config` " in told
    told = refused("export", "mine", "--to", "hf", "--as", "GPT2LMHeadModel", "-o", "out")
    assert '`decoder.position.kind` is "learned" there, and "rotary" in mine' in told
    assert "decoder.position.base" not in told  # of another kind, all keys are others
    told = refused("export", "mine", "--to", "hf", "--as", "LamaForCausalLM", "-o", "out")
    assert "no family reads a class `LamaForCausalLM`" in told
    assert "did you mean `LlamaForCausalLM`?" in told


def test_a_class_that_needs_values_that_are_not_found(project: Path, refused: Refused) -> None:
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    told = refused("export", "mine", "--to", "hf", "--as", "Dots1ForCausalLM", "-o", "out")
    assert "`moe_intermediate_size * n_shared_experts` has no value" in told
    assert "help: the class needs values that were not found: `--config` names a " in told


def test_a_class_with_another_head_is_refused(project: Path, refused: Refused) -> None:
    """`transformers` would begin it anew."""
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    told = refused("export", "mine", "--to", "hf", "--as", "LlamaForQuestionAnswering", "-o", "out")
    assert "\n  `qa_outputs` has weights there, and none here\n" in told
    assert "help:" not in told  # no configuration changes that


def test_a_class_and_a_configuration(project: Path, refused: Refused) -> None:
    write(LLAMA, OF_LLAMA)
    both = ("--as", "LlamaForCausalLM", "--config", "config.json")
    told = refused("export", "mine", "--to", "hf", *both, "-o", "out")
    assert "a `config` names its class itself" in told


def test_the_names_of_classes_are_those_of_the_spec(project: Path) -> None:
    write(BERT, OF_BERT)
    zoo.export_folder("mine", "out", config="config.json")
    assert json.loads(Path("out/config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}


def test_another_model_is_refused_value_by_value(project: Path, refused: Refused) -> None:
    write(LLAMA, {**OF_LLAMA, "intermediate_size": 64, "rope_theta": 10000.0})
    told = refused("export", "mine", "--to", "hf", "--config", "config.json", "-o", "out")
    assert "config.json: error: `LlamaForCausalLM` of `transformers` is another model:\n" in told
    assert told.count(" there, and ") == 2
    assert "`decoder.block.ffn.d_ff` is 64 there, and 48 in mine" in told
    assert "`decoder.position.base` is 10000.0 there, and 500.0 in mine" in told


def test_rounding_counts_where_weights_are_rounded(project: Path, refused: Refused) -> None:
    """Llama rounds in its norms before the weight; the spec, by default, after it. In float32 that
    is the same."""
    write(LLAMA, OF_LLAMA)
    zoo.save(zoo.load("mine").bfloat16(), "half")
    told = refused("export", "half", "--to", "hf", "--config", "config.json", "-o", "out")
    assert '`decoder.norm.cast` is "before_weight" there, and "after_weight" in mine' in told
    rounding = LLAMA.replace("eps = 1e-5", 'eps = 1e-5, cast = "before_weight"')
    zoo.save(zoo.build(zoo.read_spec(rounding)).bfloat16(), "same")
    zoo.export_folder("same", "out", config="config.json")
    theirs = AutoModelForCausalLM.from_pretrained("out").eval()
    assert theirs.dtype == torch.bfloat16
    ids = torch.tensor([[2, 7, 9, 8, 3]])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, zoo.load("same").eval()(ids))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no class": ({"architectures": []}, "`architectures` must name the class of `transformers`"),
    "two classes": ({"architectures": ["A", "B"]}, "`architectures` must name the class"),
    "no model type": ({"model_type": None}, "`model_type` must say what kind of model this is"),
    "an unknown one": ({"model_type": "lama"}, "no family reads the model_type `lama`"),
    "a wrong type": ({"hidden_size": "32"}, "`hidden_size` must be"),
    "what nothing reads": (
        {"quantization_config": {"bits": 4}},
        '`quantization_config` is {"bits": 4}, and nothing reads it',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_is_told(name: str, project: Path, refused: Refused) -> None:
    changes, message = WRONG[name]
    write(LLAMA, {**OF_LLAMA, **changes})
    told = refused("export", "mine", "--to", "hf", "--config", "config.json", "-o", "out")
    assert message in told
    assert "config.json" in told


def test_a_configuration_that_is_missing_or_damaged(project: Path, refused: Refused) -> None:
    write(LLAMA, OF_LLAMA)
    told = refused("export", "mine", "--to", "hf", "-o", "out")
    assert "the model was not imported" in told
    assert "`--as LlamaForCausalLM`" in told
    assert "no.json" in refused("export", "mine", "--to", "hf", "--config", "no.json", "-o", "out")
    Path("config.json").write_text('{"model_type": }')
    told = refused("export", "mine", "--to", "hf", "--config", "config.json", "-o", "out")
    assert "config.json:1:16" in told


def test_an_imported_model_with_another_spec_since(project: Path, refused: Refused) -> None:
    """What has changed since the import is described anew."""
    write(LLAMA, OF_LLAMA)
    zoo.export_folder("mine", "published", config="config.json")
    zoo.import_folder("published", "imported", name="mine")
    model = zoo.load("imported")
    spec = model.spec.to_dict()
    spec["decoder"]["position"]["base"] = 700.0
    changed = zoo.build(zoo.read_spec(spec))
    changed.load_state_dict(model.state_dict())
    changed.origin = model.origin
    zoo.save(changed, "changed")
    told = refused("export", "changed", "--to", "hf", "-o", "out")
    assert "with another `decoder.position.base`" in told
    assert "`--as` names its class" in told
    zoo.export_folder("changed", "out", architecture="LlamaForCausalLM")
    ids = torch.tensor([[2, 7, 9, 8, 3]])
    theirs = AutoModelForCausalLM.from_pretrained("out").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, changed.eval()(ids), rtol=1e-4, atol=1e-5)


def test_nothing_is_made_twice_while_a_configuration_is_looked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some 100 configurations most make what others did, as most names in a family's file have
    the same value for all of them."""
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    made: list[str] = []
    sources: list[str] = []
    spec_of, parse = spec_module.spec_of, scope_module.parse
    monkeypatch.setattr(
        spec_module,
        "spec_of",
        lambda document, registry: made.append(repr(document.data)) or spec_of(document, registry),
    )
    monkeypatch.setattr(
        scope_module, "parse", lambda *source: sources.append(source[0]) or parse(*source)
    )
    n_tried = iter(range(1000))
    with pytest.raises(zoo.ZooError, match="another model"):
        zoo.export_folder(
            "mine", "out", architecture="Gemma3ForCausalLM", on_trial=lambda: next(n_tried)
        )
    assert 10 < len(made) < next(n_tried)
    assert len(made) < len(set(made)) + 10  # where the search starts and ends is described besides
    assert sources.count(" num_hidden_layers") < 20  # once for each number of layers


def test_what_is_known_of_another_configuration_is_kept_while_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    families = Families(zoo.load_registry())
    family = families.family("gpt2")
    stated = {"model_type": "gpt2", "n_head": 4, "n_layer": 3}
    before = families.scope(family, JsonFile(Path("a"), stated, ""), frozenset())
    assert (before["head_dim"], before["n"]) == (192, 3)
    other = {**stated, "hidden_size": 64}  # for `transformers` and for the zoo, this is `n_embd`
    after = families.scope(family, JsonFile(Path("b"), other, ""), frozenset(), before)
    assert after["head_dim"] == 16
    monkeypatch.setattr(scope_module, "parse", None)
    with after.reading() as keys:
        assert after["n"] == 3
    assert keys == {"n_layer"}


def test_a_search_is_shown_at_a_terminal(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo.save(zoo.build(zoo.read_spec(LLAMA)), "mine")
    command = ["export", "mine", "--to", "hf", "--as", "LlamaForCausalLM", "-o"]
    assert run([*command, "quiet"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run([*command, "told"]) == 0
    assert re.search(r"looking for a configuration, \d+ tried", capsys.readouterr().err)
