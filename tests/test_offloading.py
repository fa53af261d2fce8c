"""Models whose tensors `accelerate` has moved away: between calls they are on the device meta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerate import (
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
)
from word_tokenizers import word_tokenizer

import zoo
from zoo.running.perplexity import perplexity
from zoo.running.settings import Settings
from zoo.running.text import Numbers
from zoo.running.tokenized import Tokenized
from zoo.transformer import Transformer

SIZES = {"format": 1, "name": "m", "n_layers": 2, "d_model": 8, "n_heads": 2, "d_ff": 8}
DECODER = {"builder": "decoder", "vocab": 10}
PAIR = {"builder": "encoder_decoder", "source_vocab": 10, "target_vocab": 10}
MOE = {**DECODER, "ffn": {"kind": "moe", "n_experts": 4, "top_k": 2}}
CLASSES = {"builder": "encoder", "vocab": 10, "head": {"kind": "classifier", "n_classes": 3}}


def to_memory(model: Transformer, folder: Path) -> None:
    cpu_offload(model, execution_device="cpu", offload_buffers=True)


def to_disk(model: Transformer, folder: Path) -> None:
    disk_offload(model, str(folder), execution_device="cpu", offload_buffers=True)


def in_parts(model: Transformer, folder: Path) -> None:
    parts = {name: "disk" for name, _ in model.named_children()}
    dispatch_model(model, {**parts, next(reversed(parts)): "cpu"}, offload_dir=str(folder))


Offload = Callable[[Transformer, Path], None]
WAYS = pytest.mark.parametrize("offload", [to_memory, to_disk, in_parts])


@WAYS
@pytest.mark.parametrize("spec", [DECODER, PAIR, MOE], ids=["decoder", "pair", "moe"])
@pytest.mark.parametrize("method", [zoo.Greedy(), zoo.Beam(size=2)], ids=["greedy", "beam"])
def test_an_offloaded_model_generates(
    offload: Offload, spec: dict[str, Any], method: zoo.Greedy | zoo.Beam, tmp_path: Path
) -> None:
    model = zoo.build({**SIZES, **spec})
    asked: dict[str, Any] = {"max_new_tokens": 4, "method": method}
    if spec is PAIR:
        asked["start"] = 1
    expected = zoo.generate(model, [[1, 2, 3], [4, 5]], **asked)
    offload(model, tmp_path)
    assert next(model.parameters()).is_meta
    assert zoo.generate(model, [[1, 2, 3], [4, 5]], **asked) == expected


@WAYS
def test_an_offloaded_model_takes_text(offload: Offload, tmp_path: Path) -> None:
    model = zoo.TextModel(zoo.build({**SIZES, **CLASSES}), Numbers(), Settings())
    expected = model.run(["1 2 3"])
    offload(model.transformer, tmp_path)
    assert next(model.transformer.parameters()).is_meta
    assert model.run(["1 2 3"]) == expected


@WAYS
def test_an_offloaded_model_predicts_a_text(offload: Offload, tmp_path: Path) -> None:
    words = word_tokenizer(map(str, range(10)), "0")
    transformer = zoo.build({**SIZES, **DECODER})
    model = zoo.TextModel(transformer, Tokenized(words, words, tmp_path), Settings())
    expected = perplexity(model, "1 2 3 4")
    offload(transformer, tmp_path)
    assert perplexity(model, "1 2 3 4") == expected


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_not_built_inside_init_empty_weights(tied: bool, tmp_path: Path) -> None:
    spec = {**SIZES, **DECODER, "head": {"kind": "linear", "tied": tied}}
    zoo.save(zoo.build(spec), tmp_path)
    for make in (lambda: zoo.build(spec), lambda: zoo.load(tmp_path)):
        with (
            init_empty_weights(),
            pytest.raises(zoo.ZooError, match=r'zoo.build\(spec, device="meta"\)'),
        ):
            make()


def test_a_model_in_the_memory_of_its_file_is_dispatched(tmp_path: Path) -> None:
    tied = {"head": {"kind": "linear", "tied": True}}
    zoo.save(zoo.build({**SIZES, **DECODER, **tied}), tmp_path)
    (tmp_path / "model.safetensors").chmod(0o444)
    (expected,) = zoo.generate(zoo.load(tmp_path), [[1, 2, 3]], max_new_tokens=4)
    model = zoo.load(tmp_path)
    assert model.load_report is not None
    assert model.load_report.read == "mmap"
    parts = dict(model.get_submodule("decoder").named_children())
    inside = {f"decoder.{name}": "cpu" for name in parts}
    devices = {**inside, "decoder.layers": "disk", "head": "cpu"}
    dispatch_model(model, devices, offload_dir=str(tmp_path / "offloaded"))
    (found,) = zoo.generate(model, [[1, 2, 3]], max_new_tokens=4)
    assert found.ids == expected.ids
