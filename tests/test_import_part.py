"""The language model of a checkpoint that also has encoders of images or sounds, imported alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families.checkpoints import fill, generator, saved_tensors
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from trials import Command

import zoo
from zoo.families import prepared
from zoo.families.checkpoint import Stored
from zoo.families.import_plan import plan_import
from zoo.families.registered import Families
from zoo.weights.reader import read_header

Tensors = dict[str, torch.Tensor]

SIZES: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
IMAGES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
SOUNDS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "output_proj_dims": 16,
    "subsampling_conv_channels": [4, 4],
}
GEMMA4 = {
    **SIZES,
    "global_head_dim": 16,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": 29,
}
EXPERTS = {
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 8,
    "use_bidirectional_attention": "vision",
    "final_logit_softcapping": 30.0,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}
PATCHES = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 16,
    "patch_size": 4,
    "num_position_embeddings": 16,
}


def gemma4(**text: Any) -> PreTrainedModel:
    own = {"head_dim": 8, "num_key_value_heads": 2, "position_embedding_size": 8}
    config = transformers.Gemma4Config(
        text_config=GEMMA4 | text,
        vision_config=IMAGES | own,
        audio_config=SOUNDS,
        **{f"{kind}_token_id": n for n, kind in enumerate(("image", "audio", "video"), 20)},
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def qwen3_5(*, experts: bool = False, tied: bool = False) -> PreTrainedModel:
    name = "Qwen3_5Moe" if experts else "Qwen3_5"
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = getattr(transformers, f"{name}Config")(
        text_config=SIZES
        | DELTA
        | ({**moe, "shared_expert_intermediate_size": 8} if experts else {}),
        vision_config=PATCHES,
        image_token_id=20,
        video_token_id=21,
        tie_word_embeddings=tied,
    )
    model: PreTrainedModel = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return model


def gemma3() -> PreTrainedModel:
    config = transformers.Gemma3Config(
        text_config=SIZES | {"sliding_window": 4},
        vision_config=IMAGES | {"image_size": 8, "patch_size": 2},
        mm_tokens_per_image=4,
        image_token_index=20,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


MADE: Mapping[str, Callable[[], PreTrainedModel]] = {
    "gemma4": lambda: gemma4(hidden_size_per_layer_input=4, num_kv_shared_layers=2),
    "gemma4-experts": lambda: gemma4(**EXPERTS),
    "qwen3_5": qwen3_5,
    "qwen3_5-tied": lambda: qwen3_5(tied=True),
    "qwen3_5_moe": lambda: qwen3_5(experts=True),
    "gemma3": gemma3,
}
ALONE = {
    "gemma4": "Gemma4ForCausalLM",
    "gemma4-experts": "Gemma4ForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5-tied": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
OTHERS = {
    "gemma4": [
        "model.audio_tower",
        "model.embed_audio",
        "model.embed_vision",
        "model.vision_tower",
    ],
    "qwen3_5": ["model.visual"],
    "gemma3": ["multi_modal_projector", "vision_tower"],
}
IDS = torch.tensor([[5, 9, 3, 14, 7, 11, 2, 8], [4, 4, 18, 1, 6, 12, 13, 10]])


def written(name: str, folder: Path, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Save a checkpoint of random tensors; return the model."""
    model = MADE[name]().to(dtype).eval()
    for key, tensor, owner in saved_tensors(model):
        if tensor.numel() and "rotary" not in key:
            values = tensor.double()
            fill(values, owner, generator(f"{name}:{key}"))
            tensor.data.copy_(values)
    model.save_pretrained(folder)
    return model


def change(folder: Path, **values: Any) -> None:
    """Change keys of config.json; `text` changes those of the text's."""
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data["text_config"] |= values.pop("text", {})
    data |= values
    kept = {key: value for key, value in data.items() if value is not ...}
    path.write_text(json.dumps(kept, indent=2))


def put(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(source: Path, part: str | None = "text", **values: Any) -> str:
    """The message of an import that must fail and leave nothing."""
    output = source.parent / "refused"
    with pytest.raises(zoo.ZooError) as error:
        zoo.import_folder(source, output, part=part, **values)
    assert not output.exists()
    return str(error.value)


@pytest.fixture(scope="module", params=MADE)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in `source`, the text of it in `imported`, and that again in `exported`."""
    folder = tmp_path_factory.mktemp("parts")
    written(name, folder / "source")
    zoo.import_folder(folder / "source", folder / "imported", part="text")
    zoo.export_folder(folder / "imported", folder / "exported")
    return folder


@torch.no_grad()
def test_it_is_the_model_that_reads_texts_alone(name: str, folder: Path) -> None:
    """By the whole model of `transformers`, and by its class of the text that loads the export."""
    whole = written(name, folder / "again")
    alone, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "exported",
        dtype=torch.float64,
        experts_implementation="eager",  # others know no float64
        output_loading_info=True,
    )
    assert type(alone).__name__ == ALONE[name]
    assert not any(told.values()), told
    whole.set_experts_implementation("eager")
    expected = whole(IDS).logits
    assert expected.std() > 0.1
    assert torch.equal(alone.eval()(IDS).logits, expected)
    # `transformers` computes norms and rotary positions in float32.
    found = zoo.load(folder / "imported").eval()(IDS)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def test_its_tensors_come_back_bit_by_bit(name: str, folder: Path) -> None:
    found = load_file(folder / "exported/model.safetensors")
    expected: Tensors = {}
    for key, tensor in load_file(folder / "source/model.safetensors").items():
        if "language_model" in key or key == "lm_head.weight":
            own = key.replace("model.language_model.", "model.")
            expected[own.removeprefix("language_model.")] = tensor
    assert found.keys() == expected.keys()
    assert ("lm_head.weight" in found) == (name in ("qwen3_5", "qwen3_5_moe"))
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@torch.no_grad()
def test_experts_as_qwen3_5_is_published(tmp_path: Path) -> None:
    """Those of a layer are one tensor, as in the modules of `transformers`, which saves each."""
    whole = written("qwen3_5_moe", tmp_path / "source")
    put(tmp_path / "source", {key: one.clone() for key, one in whole.state_dict().items()})
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", part="text")
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported")
    found = load_file(tmp_path / "exported/model.safetensors")
    for key, tensor in found.items():
        own = key.replace("model.", "model.language_model.")
        assert torch.equal(tensor, whole.state_dict()[own]), key
    assert "model.layers.0.mlp.experts.gate_up_proj" in found
    whole.set_experts_implementation("eager")
    expected = whole(IDS).logits
    ours = zoo.load(tmp_path / "imported").eval()(IDS)
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_left_out_is_told(kind: str, tmp_path: Path, command: Command) -> None:
    written(kind, tmp_path / "source")
    source, data, text = (str(tmp_path / one) for one in ("source", "data", "text"))
    report = json.loads(command("import", source, "--part", "text", "-o", data, "--json")[1])
    assert report["part"] == "text"
    tensors = load_file(tmp_path / "source/model.safetensors")
    _, told, _ = command("import", source, "--part", "text", "-o", text)
    expected = []
    for prefix in OTHERS[kind]:
        under = [tensor for key, tensor in tensors.items() if key.startswith(f"{prefix}.")]
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in under)
        expected.append({"prefix": prefix, "n_tensors": len(under), "n_bytes": n_bytes})
        noun = "tensor" if len(under) == 1 else "tensors"
        assert f"left out: {len(under)} {noun} of `{prefix}`, {n_bytes:,} bytes\n" in told
    assert report["left_out"] == expected


def test_the_whole_leaves_nothing_out(tmp_path: Path, command: Command) -> None:
    written("gemma3", tmp_path / "source", torch.float32)
    _, out, _ = command("import", tmp_path / "source", "-o", tmp_path / "all", "--json")
    report = json.loads(out)
    assert (report["part"], report["left_out"], report["family"]) == (None, [], "gemma3")


def test_names_new_and_old_in_one_file_or_in_shards(tmp_path: Path) -> None:
    """The same model, whichever version of `transformers` has saved it."""
    model = written("gemma3", tmp_path / "old")
    model.save_pretrained(tmp_path / "new", max_shard_size="20KB")
    shards = sorted((tmp_path / "new").glob("*.safetensors"))
    assert len(shards) > 1
    index = tmp_path / "new/model.safetensors.index.json"
    index.write_text(index.read_text().replace('"language_model.model.', '"model.language_model.'))
    for path in shards:
        tensors = {
            key.replace("language_model.model.", "model.language_model."): tensor
            for key, tensor in load_file(path).items()
        }
        save_file(tensors, path, metadata={"format": "pt"})
    digests = {
        zoo.import_folder(tmp_path / one, tmp_path / f"{one}-text", name="text", part="text")
        for one in ("old", "new")
    }
    assert len(digests) == 1


def test_the_file_tells_of_what_it_was_a_part(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source")
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", part="text")
    origin = read_header(tmp_path / "imported/model.safetensors").origin
    assert origin is not None
    assert (origin["part_of"], origin["family"]) == ("qwen3_5", "qwen3_5_text")
    stated = json.loads(origin["config"])
    text = json.loads((tmp_path / "source/config.json").read_text())["text_config"]
    more = {"architectures": ["Qwen3_5ForCausalLM"], "dtype": "float64"}
    assert stated == text | more


def test_settings_and_tokenizer_come_along(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source")
    files = {
        "generation_config.json": '{"eos_token_id": [7, 8]}',
        "chat_template.jinja": "{{ messages[0].content }}",
        "tokenizer_config.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / "source" / name).write_text(text)
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", part="text")
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported")
    for folder in ("imported", "exported"):
        for name, text in files.items():
            assert (tmp_path / folder / name).read_text() == text


def test_a_tensor_of_no_part_is_an_error(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source")
    tensors = load_file(tmp_path / "source/model.safetensors")
    put(tmp_path / "source", tensors | {"model.visuals.proj.weight": torch.zeros(2)})
    message = refused(tmp_path / "source")
    assert "`qwen3_5_text` has no rule for the tensor `model.visuals.proj.weight`" in message


def test_a_tensor_of_the_text_that_is_missing_is_an_error(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source")
    tensors = load_file(tmp_path / "source/model.safetensors")
    del tensors["lm_head.weight"]
    put(tmp_path / "source", tensors)
    message = refused(tmp_path / "source")
    assert (
        "no tensor that becomes `head.out.weight`, where it is called `lm_head.weight`" in message
    )


def test_two_names_of_one_tensor_are_an_error(tmp_path: Path) -> None:
    written("gemma3", tmp_path / "source")
    tensors = load_file(tmp_path / "source/model.safetensors")
    copy = tensors["language_model.model.norm.weight"].clone()
    put(tmp_path / "source", tensors | {"model.language_model.norm.weight": copy})
    message = refused(tmp_path / "source")
    assert "two tensors would be the `model.norm.weight` of the part" in message
    assert "`model.language_model.norm.weight`" in message


@pytest.mark.parametrize("outer", [False, True, None])
def test_whether_tables_are_tied_is_stated_outside(tmp_path: Path, outer: bool | None) -> None:
    """`transformers` looks at the outer configuration, of Gemma 3 by default true."""
    written("gemma3", tmp_path / "source")
    change(
        tmp_path / "source",
        tie_word_embeddings=... if outer is None else outer,
        text={"tie_word_embeddings": outer is False},
    )
    if outer is False:
        assert "becomes `head.out.weight`" in refused(tmp_path / "source")
        return
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", part="text")
    assert zoo.load(tmp_path / "imported").spec.ties


def test_without_part_the_error_names_it(tmp_path: Path) -> None:
    written("gemma4", tmp_path / "source")
    config = tmp_path / "source/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "gemma5"}))
    message = refused(tmp_path / "source", part=None)
    assert "no family reads the model_type `gemma5`" in message
    assert "`zoo import --part text` reads the `gemma4_text` of its `text_config`" in message
    for other in ("unheard_of", ["gemma4_text"]):
        change(tmp_path / "source", text={"model_type": other})
        assert "--part" not in refused(tmp_path / "source", part=None)


def test_parts_that_are_not_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    written("qwen3_5", source)
    message = refused(source, part="txt")
    assert "no checkpoint has a part `txt`" in message
    assert "did you mean `text`?" in message
    change(source, text={"model_type": "qwen3_5_txt"})
    message = refused(source)
    assert "no family reads the model_type `qwen3_5_txt`" in message
    assert "did you mean `qwen3_5_text`?" in message
    change(source, text_config=...)
    assert "there is no table `text_config`" in refused(source)


@pytest.mark.parametrize("part", [None, "text"])
def test_a_folder_that_is_no_checkpoint(tmp_path: Path, part: str | None) -> None:
    """What is named is a checkpoint in it, and no spec."""
    (tmp_path / "spec.toml").write_text("")
    (tmp_path / "sub").mkdir()
    message = refused(tmp_path / "sub", part)
    assert message == (
        f"{tmp_path / 'sub'}: error: this is no published checkpoint, whose folder would hold a "
        "config.json"
    )
    (tmp_path / "sub/config.json").write_text("{}")
    with pytest.raises(zoo.ZooError, match="this is no published checkpoint") as error:
        plan_import(tmp_path, part=part, name="text")
    assert str(error.value).endswith(f"help: name what is meant: `{tmp_path / 'sub'}`")


def test_texts_in_which_tokens_attend_to_later_ones(tmp_path: Path) -> None:
    """Those of Gemma 4 do so in images, where they do, or all over."""
    written("gemma4-experts", tmp_path / "source")
    change(tmp_path / "source", text={"use_bidirectional_attention": "all"})
    message = refused(tmp_path / "source")
    assert "texts in which all tokens attend to later ones are not read" in message


def test_a_text_that_no_class_of_language_models_is(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(
        text_config=dict(list(SIZES.items())[:5]), vision_config={**IMAGES, "image_size": 32}
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path / "source")
    message = refused(tmp_path / "source")
    assert "`transformers` has no class `...ForCausalLM` of `clip_text_model` alone" in message


def test_a_text_with_an_encoder(tmp_path: Path) -> None:
    """`BartForCausalLM` would be its decoder."""
    source = tmp_path / "source"
    written("qwen3_5", source)
    change(source, text={"model_type": "bart"})
    message = refused(source)
    assert "`transformers` has no class `...ForCausalLM` of `bart` alone" in message
    lines = (source / "config.json").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if '"model_type": "bart"' in text)
    assert f"config.json:{line}:5: error" in message


def test_a_wrong_value_has_its_place_in_the_file(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source")
    change(tmp_path / "source", hidden_size=5, text={"hidden_size": "16"})
    lines = (tmp_path / "source/config.json").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if '"hidden_size": "16"' in text)
    message = refused(tmp_path / "source")
    assert f'config.json:{line}:5: error: `hidden_size` must be an integer, not "16"' in message


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_quantized_weights(tmp_path: Path, inside: bool) -> None:
    """In FP8, with one scale for each matrix; the towers are of floats."""
    written("qwen3_5", tmp_path / "source", torch.bfloat16)
    tensors = load_file(tmp_path / "source/model.safetensors")
    expected = dict(tensors)
    for name in [key for key in tensors if key.endswith("mlp.up_proj.weight")]:
        small = tensors[name].to(torch.float8_e4m3fn)
        scale = torch.tensor(0.5, dtype=torch.float32)
        tensors |= {name: small, f"{name}_scale": scale}
        expected[name] = (small.float() * scale).bfloat16()
    put(tmp_path / "source", tensors)
    stated = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    change(tmp_path / "source", **({"text": stated} if inside else stated))
    zoo.import_folder(tmp_path / "source", tmp_path / "imported", part="text")
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported")
    assert "quantization" not in (tmp_path / "exported/config.json").read_text()
    found = load_file(tmp_path / "exported/model.safetensors")
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key.replace("model.", "model.language_model.")]), key


NOT_READ = {
    "florence2",  # a BART
    "paligemma",  # by default, its text attends to later tokens
    "kimi_k25",  # `transformers` gives other names to the published ones
    "shieldgemma2",
    "qianfan_ocr",
    "nemo_speechlm",  # with further heads
    "vibevoice",
}


@pytest.mark.slow
def test_words_of_the_models_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the tensors of each whole whose text a family reads, by its default sizes."""
    registry = zoo.load_registry()
    families, planned = Families(registry), set()
    for model_type, name in wholes().items():
        config = CONFIG_MAPPING[model_type]()
        with torch.device("meta"):
            model = getattr(transformers, name)(config)
        if config.text_config.model_type not in families.by_model_type:
            continue
        tied = model.all_tied_weights_keys or {}
        state = {key: one for key, one in model.state_dict().items() if key not in tied}
        tensors = {
            key: Stored(tmp_path, "F32", tuple(one.shape), 0, 4 * one.numel())
            for key, one in revert_weight_conversion(model, state).items()
        }
        config.save_pretrained(tmp_path)
        monkeypatch.setattr(prepared, "find_tensors", lambda _, found=tensors: found)
        if model_type in NOT_READ:
            with pytest.raises(zoo.ZooError):
                plan_import(tmp_path, part="text", name="text", registry=registry)
            continue
        plan = plan_import(tmp_path, part="text", name="text", registry=registry)
        n_left_out = sum(one.n_tensors for one in plan.left_out)
        assert len(plan.tensors) + n_left_out == len(tensors), model_type
        planned.add(model_type)
    assert planned > {"qwen3_5_moe", "gemma4", "llama4", "mistral3", "internvl", "voxtral"}


def wholes() -> dict[str, str]:
    """The class of each model type whose default configuration has a text, and makes a model."""
    found = {}
    for mapping in (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    ):
        for model_type, name in mapping.items():
            with suppress(Exception), torch.device("meta"):
                config = CONFIG_MAPPING[model_type]()
                config.text_config.model_type  # noqa: B018
                getattr(transformers, name)(config)
                found[model_type] = name
    return found


def adapter(folder: Path, path: str, like: torch.Tensor) -> Tensors:
    """Write an adapter of one module, whose factor has an alpha by the module's whole name."""
    n_out, n_in = like.shape
    factors = {"A": torch.randn(3, n_in) / 4, "B": torch.randn(n_out, 3) / 4}
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "alpha_pattern": {f"^{path}": 12}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        {f"base_model.model.{path}.lora_{one}.weight": t for one, t in factors.items()},
        folder / "adapter_model.safetensors",
    )
    return factors


def test_an_adapter_of_the_whole(tmp_path: Path) -> None:
    """It names modules as the whole model does, and is merged into the text."""
    written("qwen3_5", tmp_path / "source", torch.float32)
    path = "model.language_model.layers.3.self_attn.o_proj"
    before = load_file(tmp_path / "source/model.safetensors")
    torch.manual_seed(0)
    factors = adapter(tmp_path / "adapter", path, before[f"{path}.weight"])
    zoo.import_folder(
        tmp_path / "source", tmp_path / "imported", part="text", adapter=tmp_path / "adapter"
    )
    zoo.export_folder(tmp_path / "imported", tmp_path / "exported")
    found = load_file(tmp_path / "exported/model.safetensors")
    added = 4.0 * factors["B"].double() @ factors["A"].double()
    expected = (before[f"{path}.weight"].double() + added).float()
    assert torch.equal(found["model.layers.3.self_attn.o_proj.weight"], expected)


def test_an_adapter_of_what_is_left_out(tmp_path: Path) -> None:
    written("qwen3_5", tmp_path / "source", torch.float32)
    path = "model.visual.blocks.0.attn.proj"
    tensors = load_file(tmp_path / "source/model.safetensors")
    adapter(tmp_path / "adapter", path, tensors[f"{path}.weight"])
    message = refused(tmp_path / "source", adapter=tmp_path / "adapter")
    assert f"there is no tensor `{path}.weight` in the checkpoint, which it changes" in message
