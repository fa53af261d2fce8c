"""What is wrong with the header of a weights file is told in plain words, without Python's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY

import zoo
from zoo.families.checkpoint import find_tensors
from zoo.weights.header_json import is_shape
from zoo.weights.reader import read_header

NORM = "encoder.norm.weight"
TEXTS = {
    b'{"a": 1': "its header is not JSON: Expecting ',' delimiter (character 7)",
    b'{"\xff": 1}': "its header is not UTF-8",
    b'{"a":' * 9999: "its header is nested too deeply",
    b'{"a": %s}' % (b"1" * 9999): "its header holds a number that is too long",
    b'{"a": 1}': "the header's entry `a` is no object",
    b'{"a": {}}': "the `dtype` of `a` is missing or no string",
    b'{"a": {"dtype": {}}}': "the `dtype` of `a` is missing or no string",
    b'{"a": {"dtype": "F32", "shape": 4}}': "the `shape` of `a` is missing or no list of integers",
    b'{"a": {"dtype": "F32", "shape": [[]]}}': "the `shape` of `a` is missing or no list",
    b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}': "the `data_offsets` of `a` are",
    b'{"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [8, 0]}}': "the `data_offsets` of `a`",
    b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 0]}, "a": {}}': (
        "its header is not JSON: the key `a` is written twice"
    ),
    b'{"a": NaN}': "its header is not JSON: NaN is no number",
}
METADATA = {
    b'{"zoo": []}': "it is no string",
    b'{"zoo": "[]"}': "it is no object",
    b'{"zoo": "{"}': "it is not JSON: Expecting property name",
    b'{"zoo": "{}"}': "the key `format` is missing",
}
EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    f"the record of `{NORM}` is no object": lambda data: data["tensors"].update({NORM: 1}),
    "the dtype `{}` is not known, of": lambda data: data["tensors"][NORM].update(dtype={}),
    f"the record of `{NORM}` has no SHA-256": lambda data: data["tensors"][NORM].update(sha256=1),
    f"the shape of `{NORM}` is no list": lambda data: data["tensors"][NORM].update(shape=8),
    "`provenance` is no object": lambda data: data.update(provenance=[]),
    "`plugins` is no object": lambda data: data["provenance"].update(plugins=1),
    "the zoo's version is no string": lambda data: data["provenance"].update(zoo=1),
    "the origin of the plugin `a` is no": lambda data: data["provenance"]["plugins"].update(a=1),
    "the zoo's version is not one": lambda data: data["provenance"].update(zoo="\x1b]0;P\x07"),
    "the origin of the plugin `a` is not one short line": lambda data: data["provenance"][
        "plugins"
    ].update(a="1\n2"),
    "the name of the plugin `\N{REPLACEMENT CHARACTER}` is not one": lambda data: data[
        "provenance"
    ]["plugins"].update({"\x9b": "1"}),
    "the seed is no string": lambda data: data["provenance"].update(seed=1),
    "`origin` is no object": lambda data: data["provenance"].update(origin=1),
    "the tie of `a` is no string": lambda data: data["ties"].update(a=1),
    "the key `ties` is missing": lambda data: data.pop("ties"),
    "it is not what was written": lambda data: data["spec"].update(vocab=1 << 60),
}


LARGE: dict[str, list[int]] = {
    "of too many dimensions": [1] * 65,
    "of too large a size": [2**63],
    "of too many elements": [2**32, 2**31],
    "of too many elements if one size were not 0": [0, 2**32, 2**31],
    "whose product has too many digits for Python": [2**52] * 300,
    "whose product takes long": [10**4000 - 1] * 1000,
}


def write_header(path: Path, text: bytes, tensors: bytes = b"") -> None:
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors)


def refused(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(zoo.WeightsError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize(("text", "message"), TEXTS.items(), ids=TEXTS.values())
@pytest.mark.parametrize("read", [zoo.load, find_tensors], ids=["zoo", "checkpoint"])
def test_a_header(
    read: Callable[[Path], object], text: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    write_header(path, text)
    assert f"{path}: error: not a whole safetensors file: {message}" in refused(read, tmp_path)


@pytest.mark.parametrize(("text", "message"), METADATA.items(), ids=METADATA.values())
def test_the_text_of_metadata(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_header(path, b'{"__metadata__": %s}' % text)
    assert f"{path}: error: the `zoo` metadata is damaged: {message}" in refused(zoo.load, path)


@pytest.mark.parametrize(("message", "edit"), EDITS.items(), ids=EDITS)
def test_metadata(message: str, edit: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    zoo.save(zoo.build(TINY), path)
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8:end])
    data = json.loads(entries["__metadata__"]["zoo"])
    edit(data)
    entries["__metadata__"]["zoo"] = json.dumps(data)
    write_header(path, json.dumps(entries).encode(), raw[end:])
    assert f"{path}: error: the `zoo` metadata is damaged: {message}" in refused(zoo.load, path)


@pytest.mark.parametrize("shape", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("read", [zoo.load, find_tensors], ids=["zoo", "checkpoint"])
def test_a_shape_that_no_tensor_has(
    read: Callable[[Path], object], shape: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    write_header(path, json.dumps({"a": entry}).encode())
    began = time.process_time()
    assert "the `shape` of `a` is missing or no list of integers of a" in refused(read, tmp_path)
    # Not a measure of speed: the longest product takes minutes.
    assert time.process_time() - began < 20


@pytest.mark.parametrize("shape", [[2**31, 2**29], [0, 2**62], [1] * 64])
def test_a_shape_that_a_tensor_can_have(shape: list[int]) -> None:
    assert is_shape(shape)
    assert list(torch.empty(shape, device="meta").shape) == shape


def test_a_record_of_a_shape_that_no_tensor_has(tmp_path: Path) -> None:
    """All digests are right, as an attacker can make them."""
    path = tmp_path / "model.safetensors"
    zoo.save(zoo.build(TINY), path)
    raw = path.read_bytes()
    header = read_header(path)
    content = raw[len(header.to_bytes()) :]
    records = {**header.records, NORM: replace(header.records[NORM], shape=(2**52,) * 80)}
    path.write_bytes(replace(header, records=records).to_bytes() + content)
    assert "is missing or no list of integers of a tensor" in refused(zoo.load, path)


@pytest.mark.parametrize("shard", [1, [], None])
def test_an_index_of_shards(shard: object, tmp_path: Path) -> None:
    zoo.save(zoo.build(TINY), tmp_path, max_shard_bytes=1000)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][NORM] = shard
    path.write_text(json.dumps(index))
    message = f"{path}: error: not a whole safetensors file: the tensor `{NORM}` has no shard"
    assert message in refused(zoo.load, tmp_path)
