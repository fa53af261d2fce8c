"""Folders of sentence-transformers: valid and invalid contents of `modules.json`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel
from word_tokenizers import word_tokenizer

import zoo
from zoo import export_folder, import_folder
from zoo.errors import WeightsError

TRANSFORMER = ("sentence_transformers.models.Transformer", "")
POOLING = ("sentence_transformers.models.Pooling", "1_Pooling")
DENSE = ("sentence_transformers.models.Dense", "2_Dense")
NORMALIZE = ("sentence_transformers.models.Normalize", "3_Normalize")
WHOLE = [TRANSFORMER, POOLING, DENSE, NORMALIZE]
TANH = "torch.nn.modules.activation.Tanh"
WIDTH, OUT = 8, 6

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
MASK = IDS != 0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a tiny BERT with a pooling, a dense layer and a normalisation."""
    torch.manual_seed(0)
    folder = tmp_path / "source"
    config = BertConfig(
        vocab_size=19,
        hidden_size=WIDTH,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    state_modules(folder, WHOLE)
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    dense = {"in_features": WIDTH, "out_features": OUT, "bias": True, "activation_function": TANH}
    write(folder / "2_Dense" / "config.json", dense)
    tensors = {"linear.weight": torch.randn(OUT, WIDTH), "linear.bias": torch.randn(OUT)}
    save_file(tensors, folder / "2_Dense" / "model.safetensors", {"format": "pt"})
    return folder


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def change(path: Path, **values: Any) -> None:
    """Change keys of a JSON file; `...` removes one."""
    found = json.loads(path.read_text()) | values
    write(path, {key: value for key, value in found.items() if value is not ...})


def state_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(modules)
    ]
    write(folder / "modules.json", listed)


@torch.no_grad()
def states(source: Path) -> Tensor:
    """Return the output of transformers for the texts, (2, 4, 8)."""
    model = BertModel.from_pretrained(source, add_pooling_layer=False).eval()
    last: Tensor = model(IDS, attention_mask=MASK.long()).last_hidden_state
    return last


@torch.no_grad()
def imported(source: Path) -> Tensor:
    """Return the output of the imported model for the texts."""
    import_folder(source, source.parent / "imported")
    made: Tensor = zoo.load(source.parent / "imported").eval()(IDS, source_mask=MASK)
    return made


def refused(source: Path, *, at: str) -> str:
    """Return the message of an import that must fail and leave no files; `at` is the wrong file."""
    with pytest.raises(zoo.ZooError) as error:
        import_folder(source, source.parent / "imported")
    assert [path.name for path in source.parent.iterdir()] == ["source"]
    assert str(error.value.problems[0].place).startswith(str(source / at))
    return str(error.value)


# --- what works ---------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, ...])
def test_pooling_dense_and_normalisation(source: Path, bias: Any) -> None:
    """A dense layer has a bias unless it says otherwise."""
    change(source / "2_Dense" / "config.json", bias=bias)
    weights = load_file(source / "2_Dense" / "model.safetensors")
    mean = (states(source) * MASK[..., None]).sum(1) / MASK.sum(1, keepdim=True)
    dense = torch.tanh(F.linear(mean, weights["linear.weight"], weights["linear.bias"]))
    torch.testing.assert_close(imported(source), F.normalize(dense, dim=-1), rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ["T5", "MT5", "UMT5", "LongT5", "SwitchTransformers"])
def test_the_encoder_alone_of_a_model_of_pairs(name: str, tmp_path: Path) -> None:
    """As the models of sentences, and of images from texts, have it; and with a head as these."""
    sizes = {"vocab_size": 19, "d_model": WIDTH, "d_kv": 4, "d_ff": 12, "num_heads": 2}
    config = getattr(transformers, f"{name}Config")(**sizes, num_layers=2)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{name}EncoderModel")(config).eval()
    folder = tmp_path / "source"
    theirs.save_pretrained(folder)
    import_folder(folder, tmp_path / "alone")
    model = zoo.load(tmp_path / "alone").eval()
    expected = theirs(IDS, attention_mask=MASK.long()).last_hidden_state
    found = model(IDS, source_mask=MASK)
    torch.testing.assert_close(found[MASK], expected[MASK], rtol=0, atol=1e-5)
    zoo.export_folder(tmp_path / "alone", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    wanted = load_file(folder / "model.safetensors")
    assert back.keys() == wanted.keys()
    assert all(torch.equal(back[key], wanted[key]) for key in wanted)

    state_modules(folder, [TRANSFORMER, POOLING, NORMALIZE])
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    mean = (expected * MASK[..., None]).sum(1) / MASK.sum(1, keepdim=True)
    torch.testing.assert_close(imported(folder), F.normalize(mean, dim=-1), rtol=0, atol=1e-5)


def pooled(states: Tensor, mode: str) -> Tensor:
    """Pooling as defined by sentence-transformers, one text at a time."""
    texts = [text[mask] for text, mask in zip(states, MASK, strict=True)]
    ways = {
        "cls": lambda text: text[0],
        "lasttoken": lambda text: text[-1],
        "mean": lambda text: text.mean(0),
        "max": lambda text: text.max(0).values,
        "mean_sqrt_len": lambda text: text.sum(0) / len(text) ** 0.5,
        "weightedmean": lambda text: (
            sum(place * token for place, token in enumerate(text, start=1))
            / sum(range(len(text) + 1))
        ),
    }
    return torch.stack([ways[mode](text) for text in texts])


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        ("cls", "pooling_mode_cls_token"),
        ("lasttoken", "pooling_mode_lasttoken"),
        ("mean", "pooling_mode_mean_tokens"),
        ("max", "pooling_mode_max_tokens"),
        ("mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens"),
        ("weightedmean", "pooling_mode_weightedmean_tokens"),
    ],
)
@pytest.mark.parametrize("spelling", ["flags", "one key"])
def test_every_way_of_pooling(source: Path, mode: str, key: str, spelling: str) -> None:
    state_modules(source, [TRANSFORMER, POOLING])
    said = {key: True} if spelling == "flags" else {"pooling_mode": mode}
    write(source / "1_Pooling" / "config.json", said)
    expected = pooled(states(source), mode)
    torch.testing.assert_close(imported(source), expected, rtol=0, atol=1e-6)


def test_a_dense_layer_without_bias_or_activation(source: Path) -> None:
    state_modules(source, [TRANSFORMER, POOLING, DENSE])
    identity = "torch.nn.modules.linear.Identity"
    change(source / "2_Dense" / "config.json", bias=False, activation_function=identity)
    weight = torch.randn(OUT, WIDTH)
    save_file({"linear.weight": weight}, source / "2_Dense" / "model.safetensors")
    expected = pooled(states(source), "mean") @ weight.T
    torch.testing.assert_close(imported(source), expected, rtol=0, atol=1e-6)


SECOND = ("sentence_transformers.models.Dense", "10_Dense")


@pytest.fixture
def wide(source: Path) -> Path:
    """Return the source with two dense layers without activations or biases, as EmbeddingGemma."""
    torch.manual_seed(1)
    state_modules(source, [TRANSFORMER, POOLING, DENSE, SECOND, NORMALIZE])
    identity = "torch.nn.modules.linear.Identity"
    for (_, folder), (n_in, n_out) in ((DENSE, (WIDTH, 12)), (SECOND, (12, OUT))):
        dense = {"in_features": n_in, "out_features": n_out, "bias": False}
        write(source / folder / "config.json", {**dense, "activation_function": identity})
        weights = {"linear.weight": torch.randn(n_out, n_in)}
        save_file(weights, source / folder / "model.safetensors", {"format": "pt"})
    return source


def test_two_dense_layers(wide: Path, tmp_path: Path) -> None:
    first, second = (
        load_file(wide / folder / "model.safetensors")["linear.weight"]
        for _, folder in (DENSE, SECOND)
    )
    expected = F.normalize(pooled(states(wide), "mean") @ first.T @ second.T, dim=-1)
    torch.testing.assert_close(imported(wide), expected, rtol=0, atol=1e-6)
    export_folder(tmp_path / "imported", tmp_path / "exported")
    for path in (path.relative_to(wide) for path in wide.rglob("*") if path.is_file()):
        assert (tmp_path / "exported" / path).read_bytes() == (wide / path).read_bytes(), path


@pytest.mark.parametrize(
    ("folder", "change_of", "message"),
    [
        ("2_Dense", {"activation_function": TANH}, "the dense layer before this one"),
        ("10_Dense", {"bias": True}, "both must have a bias or none"),
    ],
)
def test_two_dense_layers_that_are_not_supported(
    wide: Path, folder: str, change_of: dict[str, Any], message: str
) -> None:
    change(wide / folder / "config.json", **change_of)
    assert message in refused(wide, at="10_Dense/config.json")


def test_two_dense_layers_in_the_other_order(wide: Path) -> None:
    state_modules(wide, [TRANSFORMER, POOLING, SECOND, DENSE])
    message = refused(wide, at="modules.json")
    assert "`2_Dense` must have a higher number than `10_Dense`" in message


def test_the_folder_comes_back_byte_for_byte(source: Path, tmp_path: Path) -> None:
    import_folder(source, tmp_path / "imported")
    export_folder(tmp_path / "imported", tmp_path / "exported")
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "exported")
        for path in (tmp_path / "exported").rglob("*")
        if path.is_file()
    }
    for name in files:
        assert (tmp_path / "exported" / name).read_bytes() == (source / name).read_bytes(), name


def test_weights_are_exported_without_the_files_beside_them(source: Path, tmp_path: Path) -> None:
    """Others may take the place of those that came along."""
    import_folder(source, tmp_path / "imported")
    (tmp_path / "imported" / "2_Dense" / "config.json").unlink()
    export_folder(tmp_path / "imported", tmp_path / "exported")
    assert [path.name for path in (tmp_path / "exported" / "2_Dense").iterdir()] == [
        "model.safetensors"
    ]


def test_what_follows_the_encoder_is_in_no_configuration(source: Path, tmp_path: Path) -> None:
    """Exported by its config.json alone, the model would be one without its pooling."""
    import_folder(source, tmp_path / "imported")
    with pytest.raises(WeightsError, match=r'`head.kind` is .* there, and "sentence'):
        export_folder(tmp_path / "imported", tmp_path / "exported", config=source / "config.json")


# --- what does not ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["3", '{"0": "x"}', '[{"idx": 0}]', '[{"type": "Transformer"}]', '["Transformer"]']
)
def test_no_list_of_modules(source: Path, text: str) -> None:
    (source / "modules.json").write_text(text)
    assert "no list of modules" in refused(source, at="modules.json")


@pytest.mark.parametrize(
    "modules",
    [
        [],
        [TRANSFORMER],
        [POOLING, TRANSFORMER],
        [TRANSFORMER, POOLING, NORMALIZE, DENSE],
        [TRANSFORMER, POOLING, DENSE, DENSE, DENSE],
        [TRANSFORMER, POOLING, ("sentence_transformers.models.LSTM", "2_LSTM")],
    ],
)
def test_modules_that_are_not_supported(source: Path, modules: list[tuple[str, str]]) -> None:
    state_modules(source, modules)
    message = refused(source, at="modules.json")
    assert "not supported" in message
    assert "a Transformer, a Pooling" in message


def test_two_dense_layers_in_one_folder(source: Path) -> None:
    state_modules(source, [TRANSFORMER, POOLING, DENSE, DENSE])
    assert "must have a higher number" in refused(source, at="modules.json")


@pytest.mark.parametrize(
    "path",
    ["../elsewhere", "/etc", "a/../../b", "", ".", "1_Pooling/", "./1_Pooling", "\0", "\ud800"],
)
def test_a_module_outside_of_the_folder(source: Path, path: str) -> None:
    state_modules(source, [TRANSFORMER, (POOLING[0], path)])
    message = refused(source, at="modules.json")
    assert "is not the name of a folder beside this file" in message


def test_a_list_of_modules_that_is_nested_deeply(source: Path) -> None:
    (source / "modules.json").write_text("[" * 100_000)
    assert "not JSON: maximum recursion depth" in refused(source, at="modules.json")


def test_a_transformer_that_is_elsewhere(source: Path) -> None:
    state_modules(source, [(TRANSFORMER[0], "0_Transformer"), POOLING])
    assert "not beside this file" in refused(source, at="modules.json")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({}, "not none"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "not `cls`, `mean`"),
        ({"pooling_mode": "attention"}, "not `attention`"),
        ({"pooling_mode_mean_tokens": False}, "not none"),
    ],
)
def test_a_pooling_that_is_not_known(source: Path, said: dict[str, Any], named: str) -> None:
    write(source / "1_Pooling" / "config.json", said)
    message = refused(source, at="1_Pooling/config.json")
    assert "one way of pooling is supported" in message
    assert named in message


def test_a_pooling_without_its_config(source: Path) -> None:
    (source / "1_Pooling" / "config.json").unlink()
    refused(source, at="1_Pooling/config.json")


def test_an_activation_that_is_not_known(source: Path) -> None:
    gelu = "torch.nn.modules.activation.GELU"
    change(source / "2_Dense" / "config.json", activation_function=gelu)
    message = refused(source, at="2_Dense/config.json:5")
    assert f"the activation `{gelu}` is not known" in message


@pytest.mark.parametrize("width", [..., "6", 6.0, True])
def test_a_width_that_is_no_integer(source: Path, width: Any) -> None:
    change(source / "2_Dense" / "config.json", out_features=width)
    assert "`out_features` must be an integer" in refused(source, at="2_Dense/config.json")


def test_another_width_than_the_weights_have(source: Path) -> None:
    change(source / "2_Dense" / "config.json", out_features=OUT + 1)
    assert "makes `head.dense.weight` [6, 8]; the spec says [7, 8]" in refused(source, at="")


def test_a_dense_layer_without_its_weights(source: Path) -> None:
    (source / "2_Dense" / "model.safetensors").unlink()
    refused(source, at="2_Dense")


def test_a_dense_layer_with_a_tensor_too_many(source: Path) -> None:
    path = source / "2_Dense" / "model.safetensors"
    save_file({**load_file(path), "linear.scale": torch.ones(1)}, path)
    assert "no rule for the tensor `2_Dense/linear.scale`" in refused(source, at="")


# --- texts --------------------------------------------------------------------------------------


@pytest.fixture
def spoken(source: Path) -> Callable[[], zoo.TextModel]:
    """Return a function that imports the model with a tokenizer that tells capital letters."""
    words = ["[PAD]", "query:", "A", "a", "B", "b"]
    word_tokenizer(words, "[PAD]").save(str(source / "tokenizer.json"))

    def make() -> zoo.TextModel:
        import_folder(source, source.parent / "spoken")
        return zoo.TextModel.load(source.parent / "spoken")

    return make


def vector(model: zoo.TextModel, *ids: int) -> Any:
    with torch.no_grad():
        return pytest.approx(model.transformer.eval()(torch.tensor([ids]))[0].tolist(), abs=1e-6)


@pytest.mark.parametrize(("lower", "ids"), [(True, (3, 5)), (False, (2, 4)), (None, (2, 4))])
@pytest.mark.parametrize("normalizer", [None, tokenizers.normalizers.NFC()])
def test_texts_in_small_letters(
    source: Path, spoken: Callable[[], zoo.TextModel], lower: bool | None, ids: Any, normalizer: Any
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.save(str(source / "tokenizer.json"))
    write(source / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": lower})
    model = spoken()
    assert model.run(["A B"])[0]["embedding"] == vector(model, *ids)


def put_special_tokens(source: Path) -> Path:
    """Let the tokenizer put one token before a text and one after it; return its file."""
    path = source / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[PAD] $A b", special_tokens=[("[PAD]", 0), ("b", 5)]
    )
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("most", [3, 5, 6, None])
def test_the_end_of_a_long_text_is_not_read(
    source: Path, spoken: Callable[[], zoo.TextModel], most: int | None
) -> None:
    """As sentence-transformers has it cut by `transformers`: the prompt and the special tokens
    count, and the special ones stay."""
    file = str(put_special_tokens(source))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=file, pad_token="[PAD]")
    prompts = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    write(source / "config_sentence_transformers.json", prompts)
    write(source / "sentence_bert_config.json", {"max_seq_length": most})
    model, ids = spoken(), theirs("query: A B a", truncation=True, max_length=most or 9).input_ids
    with warnings.catch_warnings(record=True, action="always") as told:
        assert model.run(["A B a"])[0]["embedding"] == vector(model, *ids)
    expected = [f"`max_seq_length` is {most}, and of a longer text the end is not read"]
    found = [str(one.message).partition(": ")[2] for one in told]
    assert found == (expected if most in (3, 5) else [])


def test_special_tokens_alone_are_no_text(
    source: Path, spoken: Callable[[], zoo.TextModel]
) -> None:
    put_special_tokens(source)
    write(source / "sentence_bert_config.json", {"max_seq_length": 2})
    with pytest.raises(zoo.WeightsError, match="2 tokens would be those that are put around a"):
        spoken()


@pytest.mark.parametrize(
    ("name", "ids"), [("query", (1, 2)), ("document", (2,)), (None, (2,)), (..., (2,))]
)
def test_the_prompt_before_every_text(
    source: Path, spoken: Callable[[], zoo.TextModel], name: Any, ids: tuple[int, ...]
) -> None:
    path = source / "config_sentence_transformers.json"
    write(path, {"prompts": {"query": "query: ", "document": ""}})
    change(path, default_prompt_name=name)
    model = spoken()
    assert model.run(["A"])[0]["embedding"] == vector(model, *ids)
    with pytest.raises(zoo.ZooError, match="a text is a string"):
        model.run([5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("sentence_bert_config.json", {"do_lower_case": 7}, "`do_lower_case` must be"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "`max_seq_length` must be"),
        ("sentence_bert_config.json", {"max_seq_length": "9"}, "`max_seq_length` must be"),
        ("config_sentence_transformers.json", {"prompts": []}, "`prompts` must be a table"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            "`default_prompt_name` is `query`, which is none of its `prompts`",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            "`include_prompt` is false",
        ),
    ],
)
def test_texts_that_cannot_be_prepared(
    source: Path,
    spoken: Callable[[], zoo.TextModel],
    name: str,
    values: dict[str, Any],
    told: str,
) -> None:
    stated = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    write(source / "config_sentence_transformers.json", stated)
    write(source / name, values)
    with pytest.raises(zoo.ZooError) as error:
        spoken()
    assert told in str(error.value)
    assert str(error.value.problems[0].place).startswith(str(source.parent / "spoken" / name))
