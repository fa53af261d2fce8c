"""A saved model is restored exactly, and damaged or foreign files are refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_specs import EXAMPLES, TINY, small
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as DynamicallyQuantized
from torch.testing._internal.two_tensor import TwoTensor

import zoo
from zoo import saving
from zoo.machine.threads import on_all_cores
from zoo.weights.file import Record

TABLE = "decoder.embed.tokens.weight"
ALIASES = ("encoder.embed.tokens.weight", "head.out.weight")
NORM = "encoder.norm.weight"
COUNTER = "encoder.norm.num_batches_tracked"
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, without a user's registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "model.safetensors"
    zoo.save(zoo.build(TINY, seed=3), path)
    return path.read_bytes()


@pytest.fixture
def tiny(tiny_bytes: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(tiny_bytes)
    return path


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def everything(model: nn.Module) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    """Return parameters and buffers, also those that are not stored, under all of their names."""
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: (tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in named}


def same_objects(model: nn.Module) -> set[frozenset[str]]:
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values()}


# --- what is saved comes back ---------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_comes_back(path: Path, tmp_path: Path) -> None:
    model = zoo.build(small(path), seed=1)
    digest = zoo.save(model, tmp_path / "first")
    loaded = zoo.load(tmp_path / "first")
    assert everything(loaded) == everything(model)
    assert same_objects(loaded) == same_objects(model)
    assert loaded.spec == model.spec
    assert [p.requires_grad for p in loaded.parameters()] == [True] * len([*loaded.parameters()])
    assert zoo.save(loaded, tmp_path / "again") == digest
    first, again = (tmp_path / name / "model.safetensors" for name in ("first", "again"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_as_it_was_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    model = zoo.build(TINY, dtype=dtype)
    zoo.save(model, tmp_path)
    loaded = zoo.load(tmp_path)
    assert everything(loaded) == everything(model)
    assert loaded.get_parameter(TABLE).dtype is dtype
    assert loaded.get_buffer(COUNTER).dtype is torch.int64


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_that_is_asked_for_casts_floats_only(dtype: torch.dtype, tiny: Path) -> None:
    plain, cast = zoo.load(tiny), zoo.load(tiny, dtype=dtype)
    wanted = zoo.load(tiny).to(dtype).state_dict()
    assert all(torch.equal(cast.state_dict()[name], wanted[name]) for name in wanted)
    assert cast.get_parameter(TABLE).dtype is dtype
    assert plain.get_parameter(TABLE).dtype is torch.float32
    assert cast.get_buffer(COUNTER).dtype is torch.int64


def test_a_table_that_is_not_stored_has_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    zoo.save(zoo.build({**TINY, "position": "sinusoidal"}), tmp_path)
    for dtype in (torch.float32, torch.float64):
        table = zoo.load(tmp_path, dtype=dtype).get_buffer("encoder.embed.positions.table")
        assert table.dtype is dtype


@pytest.mark.parametrize("read", ["bytes", "mmap"])
def test_a_dtype_that_cannot_hold_a_value_is_refused(
    read: Literal["bytes", "mmap"], tmp_path: Path
) -> None:
    """65,520 is the least number that float16 rounds to infinity (IEEE 754). What is infinite or no
    number in the file stays so."""
    inf, nan = float("inf"), float("nan")
    model = zoo.build(TINY)

    def saved(*values: float) -> Path:
        with torch.no_grad():
            model.get_parameter(NORM)[: len(values)] = torch.tensor(values)
        file = tmp_path / f"{values}.safetensors"
        zoo.save(model, file)
        file.chmod(0o444)
        return file

    for values in ((7e4, 1), (1, 65520), (-7e4, nan), (7e4, inf)):
        file = saved(*values)
        with pytest.raises(zoo.WeightsError) as caught:
            zoo.load(file, dtype="float16", read=read)
        told = f"{file}: error: 1 value of `{NORM}` would be infinite in float16\n"
        assert told in str(caught.value)
        zoo.load(file, dtype="bfloat16", read=read)
    half = zoo.load(saved(65519, -inf), dtype="float16", read=read).get_parameter(NORM)
    assert half[:2].tolist() == [65504, -inf]


def test_tensors_of_different_dtypes_stay_different(tmp_path: Path) -> None:
    model = zoo.build(TINY, dtype=torch.bfloat16)
    model.encoder.norm.float()
    zoo.save(model, tmp_path)
    assert everything(zoo.load(tmp_path)) == everything(model)


def test_where_weights_came_from_is_kept(tiny: Path, tmp_path: Path) -> None:
    """Also when they are saved again; the digest of the tensors does not depend on it."""
    assert zoo.load(tiny).origin is None
    model = zoo.load(tiny)
    model.origin = {"family": "gpt2", "config": {"n_layer": 1, "eps": 1e-5, "names": ["ä", None]}}
    digest = zoo.save(model, tmp_path / "imported")
    loaded = zoo.load(tmp_path / "imported")
    assert loaded.origin == model.origin
    assert zoo.save(loaded, tmp_path / "again") == digest == zoo.save(zoo.load(tiny), tmp_path)
    first, again = (tmp_path / name / "model.safetensors" for name in ("imported", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_a_model_in_training_comes_back(tiny: Path, tmp_path: Path) -> None:
    model = zoo.load(tiny)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2]]), torch.tensor([[3, 4]])).sum().backward()
    optimizer.step()
    zoo.save(model, tmp_path / "trained")
    assert everything(zoo.load(tmp_path / "trained")) == everything(model)
    assert bits(model.get_parameter(TABLE)) != bits(zoo.load(tiny).get_parameter(TABLE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nan_payloads_signed_zeros_and_denormals_are_kept(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = zoo.build(TINY, dtype=dtype)
    table = model.get_parameter(TABLE)
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    words = {
        torch.float32: [0x7FC00001, 0x7F800001, -0x3FFFFF, -0x80000000, 1, 0x7F800000],
        torch.float16: [0x7E01, 0x7C01, -0x1FF, -0x8000, 1, 0x7C00],
        torch.bfloat16: [0x7FC1, 0x7F81, -0x3F, -0x8000, 1, 0x7F80],
    }[dtype]
    with torch.no_grad():
        table.view(-1)[: len(words)] = torch.tensor(words, dtype=integers).view(dtype)
    assert table.isnan().sum() == 3
    zoo.save(model, tmp_path)
    assert bits(zoo.load(tmp_path).get_parameter(TABLE)) == bits(table)


def test_what_is_loaded_is_a_model_of_its_own(tiny: Path) -> None:
    before = tiny.read_bytes()
    model = zoo.load(tiny)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert tiny.read_bytes() == before
    assert not torch.equal(zoo.load(tiny).get_parameter(TABLE), model.get_parameter(TABLE))


def test_nothing_around_changes_what_is_loaded(tiny: Path) -> None:
    before = everything(zoo.load(tiny))
    torch.set_default_dtype(torch.float64)
    try:
        assert everything(zoo.load(tiny)) == before
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        assert everything(zoo.load(tiny)) == before


def test_a_model_can_be_loaded_without_values(tiny: Path) -> None:
    model = zoo.load(tiny, device="meta")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


# --- the file -------------------------------------------------------------------------------------


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def test_tied_tensors_are_stored_once_under_the_first_name(tiny: Path) -> None:
    header = header_of(tiny)
    assert TABLE in header
    assert not set(ALIASES) & header.keys()
    assert json.loads(header["__metadata__"]["zoo"])["ties"] == dict.fromkeys(ALIASES, TABLE)
    model = zoo.load(tiny)
    assert all(model.get_parameter(alias) is model.get_parameter(TABLE) for alias in ALIASES)


def test_the_file_is_plain_safetensors(tiny: Path) -> None:
    model = zoo.load(tiny)
    tensors = load_file(tiny)
    assert {name: bits(tensor) for name, tensor in tensors.items()} == {
        name: bits(tensor) for name, tensor in model.state_dict().items() if name not in ALIASES
    }


def test_the_header_has_one_key_of_canonical_json(tiny: Path) -> None:
    metadata = header_of(tiny)["__metadata__"]
    assert list(metadata) == ["zoo"]
    data = json.loads(metadata["zoo"])
    compact = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert metadata["zoo"] == compact.replace("1e-05", "0.00001")  # RFC 8785: no exponent
    assert data["spec"] == zoo.read_spec(TINY).to_dict()
    assert set(data["provenance"]["plugins"].values()) == {f"zoo {zoo.__version__}"}
    assert data["provenance"]["plugins"].keys() >= {"builder.encoder_decoder", "norm.batch_norm"}


def test_nothing_of_the_machine_is_in_the_header(tiny_bytes: bytes) -> None:
    for hint in (torch.__version__, str(Path.cwd()), str(Path(zoo.__file__).parent), sys.version):
        assert hint.encode() not in tiny_bytes


def test_the_digests_are_those_of_hashlib(tiny: Path, tmp_path: Path) -> None:
    names = {"float32": "F32", "int64": "I64"}
    lines = []
    for name, tensor in sorted(load_file(tiny).items()):
        dtype = names[str(tensor.dtype).removeprefix("torch.")]
        shape = ",".join(str(size) for size in tensor.shape)
        lines.append(f"{name}\0{dtype}\0{shape}\0{hashlib.sha256(bits(tensor)).hexdigest()}\n")
    digest = "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()
    assert zoo.save(zoo.load(tiny), tmp_path / "again") == digest


def test_every_tensor_is_aligned_to_its_elements(tmp_path: Path) -> None:
    model = zoo.build(TINY, dtype=torch.bfloat16)
    model.encoder.norm.double()
    zoo.save(model, tmp_path)
    path = tmp_path / "model.safetensors"
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert start % 8 == 0
    sizes = {"F64": 8, "I64": 8, "BF16": 2}
    entries = {name: e for name, e in header_of(path).items() if name != "__metadata__"}
    assert {entry["dtype"] for entry in entries.values()} == sizes.keys()
    assert all(e["data_offsets"][0] % sizes[e["dtype"]] == 0 for e in entries.values())


# --- bad files ------------------------------------------------------------------------------------


def refused(path: Path, *parts: str, **options: Any) -> zoo.ZooError:
    """Return the error of loading `path`, which names the file."""
    with pytest.raises(zoo.ZooError) as caught:
        zoo.load(path, **options)
    assert path.name.replace("\0", "\N{REPLACEMENT CHARACTER}") in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    return caught.value


def test_a_truncated_file(tiny_bytes: bytes, tiny: Path) -> None:
    data = 8 + int.from_bytes(tiny_bytes[:8], "little")
    offsets = {*range(17), *range(17, data + 2, 211), *range(data, len(tiny_bytes), 503)}
    for length in sorted(offsets | {data - 1, data, len(tiny_bytes) - 1}):
        tiny.write_bytes(tiny_bytes[:length])
        error = refused(tiny, "not a whole safetensors file")
        assert isinstance(error, zoo.WeightsError)


@pytest.mark.parametrize("more", [b"\0", b"\0" * 8, b"\0" * 4096])
def test_a_file_that_goes_on(more: bytes, tiny_bytes: bytes, tiny: Path) -> None:
    tiny.write_bytes(tiny_bytes + more)
    refused(tiny, "not a whole safetensors file")


def replace(path: Path, content: bytes) -> None:
    """Put a file in the place of another one, that nobody may write to: such files are mapped."""
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o444)


@pytest.mark.parametrize("read", ["bytes", "mmap"])
def test_a_changed_byte_of_a_tensor_is_told_by_its_name(
    read: Literal["bytes", "mmap"], tiny_bytes: bytes, tiny: Path
) -> None:
    data = 8 + int.from_bytes(tiny_bytes[:8], "little")
    for name in (TABLE, NORM, COUNTER, "encoder.layers.0.ffn.up_proj.weight"):
        first, end = header_of(tiny)[name]["data_offsets"]
        for at in (first, end - 1):
            changed = bytearray(tiny_bytes)
            changed[data + at] ^= 1
            replace(tiny, changed)
            refused(tiny, f"the bytes of `{name}` are not those that were saved", read=read)
            zoo.load(tiny, verify=False, read=read)


def changed_at(raw: bytes, region: float, offset: int, change: Callable[[bytes], bytes]) -> bytes:
    """Return `raw` with changed bytes at an offset; regions: length, JSON, metadata, data."""
    data = 8 + int.from_bytes(raw[:8], "little")
    metadata = raw.index(b'"zoo"'), raw.index(b'"}', raw.index(b'"zoo"')) + 2
    start, end = [(0, 8), (8, data), metadata, (data, len(raw))][int(region)]
    at = start + offset % (end - start)
    return raw[:at] + change(raw[at:])


CHANGES = {
    "flip": lambda tail, n: bytes([tail[0] ^ (1 << n % 8)]) + tail[1:],
    "set": lambda tail, n: bytes([n % 256]) + tail[1:],
    "insert": lambda tail, n: bytes([n % 256]) + tail,
    "delete": lambda tail, n: tail[1 + n % 9 :],
    "double": lambda tail, n: tail[: 1 + n % 40] + tail,
    "swap": lambda tail, n: tail[1 + n % 40 :] + tail[: 1 + n % 40],
    "zero": lambda tail, n: bytes(min(len(tail), n % 70)) + tail[n % 70 :],
    "cut": lambda tail, n: b"",
}


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(region=2, offset=40, how="set", n=ord("9"))
@given(
    region=st.integers(0, 3),
    offset=st.integers(0, 1 << 20),
    how=st.sampled_from(sorted(CHANGES)),
    n=st.integers(0, 1 << 16),
)
def test_no_change_of_the_file_goes_unnoticed(
    region: int, offset: int, how: str, n: int, tiny_bytes: bytes, tiny: Path
) -> None:
    changed = changed_at(tiny_bytes, region, offset, lambda tail: CHANGES[how](tail, n))
    tiny.write_bytes(changed)
    try:
        zoo.load(tiny)
    except zoo.WeightsError:
        return
    assert changed == tiny_bytes


def test_safetensors_itself_lays_the_file_out_in_the_same_way(tiny: Path) -> None:
    before = tiny.read_bytes()
    with safe_open(tiny, framework="pt") as file:
        save_file(load_file(tiny), tiny, metadata=file.metadata())
    assert tiny.read_bytes() == before


def test_a_header_that_says_the_same_in_other_bytes(tiny_bytes: bytes, tiny: Path) -> None:
    """Differences without meaning in JSON are refused, too."""
    end = 8 + int.from_bytes(tiny_bytes[:8], "little")
    for text in (
        tiny_bytes[8:end].replace(b'"dtype":', b'"dtype" :', 1),
        tiny_bytes[8:end] + b" " * 8,
        tiny_bytes[8:end].replace(b'"__metadata__":{', b'"__metadata__":{"a":"b",', 1),
    ):
        tiny.write_bytes(len(text).to_bytes(8, "little") + text + tiny_bytes[end:])
        refused(tiny, "not laid out as the zoo does it")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"format": "pt"},
        {"zoo": ""},
        {"zoo": "{}"},
        {"zoo": "[]"},
        {"zoo": "null"},
        {"zoo": "[" * 100_000},
        {"zoo": '{"format": 1}'},
        {"zoo": '{"format": 2, "spec": {}, "provenance": {}, "ties": {}, "tensors": {}}'},
        {"zoo": '{"format": 1, "spec": [], "provenance": {}, "ties": {}, "tensors": {}}'},
        {"zoo": '{"format": 1, "spec": {}, "provenance": {}, "ties": {}, "tensors": {"a": 1}}'},
        {"zoo": '{"format": 1, "spec": {}, "provenance": {}, "ties": {"a": 1}, "tensors": {}}'},
        {"zoo": '{"format": 1, "spec": {"a": NaN}, "provenance": {}, "ties": {}, "tensors": {}}'},
    ],
)
def test_a_foreign_file(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"a": torch.ones(3)}, path, metadata=metadata)
    error = refused(path, "`zoo` metadata")
    assert isinstance(error, zoo.WeightsError)
    if metadata is None:
        assert "`zoo import` reads the folders of published checkpoints" in str(error)


@pytest.mark.parametrize("content", [b"", b"a text, and more", b"\xff" * 64, b"\0" * 64])
def test_what_is_no_safetensors_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    refused(path, "not a whole safetensors file")


def test_a_file_of_another_format_is_not_called_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(3)}, path)
    told = str(refused(path, "not a safetensors file, but an archive, as `torch.save` writes"))
    assert "fetch or build it again" not in told
    assert "give it `load_state_dict(torch.load(...))`, and save it with `zoo.save`" in told
    (tmp_path / "notes.txt").write_text("no weights, but a text")
    assert "weights are a `.safetensors` file" in str(refused(tmp_path / "notes.txt", "no header"))


Edit = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def rewritten(path: Path, edit: Edit) -> None:
    """Write the file as an attacker could: with changed header and tensors, right checksums, and
    the zoo's layout."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        data = json.loads(file.metadata()["zoo"])
    del data["sha256"]
    edit(data, tensors)
    data.setdefault("sha256", hashlib.sha256(canonical(data)).hexdigest())
    entries: dict[str, Any] = {"__metadata__": {"zoo": canonical(data).decode()}}
    content = b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        offsets = [len(content), len(content) + tensor.nbytes]
        entries[name] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        content += bits(tensor)
    text = json.dumps(entries, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + content)


SAFETENSORS_NAMES = {
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}


def canonical(data: dict[str, Any]) -> bytes:
    """RFC 8785, for the one small float in `TINY`."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.replace("1e-05", "0.00001").encode()


def put(data: dict[str, Any], tensors: dict[str, torch.Tensor], name: str, t: torch.Tensor) -> None:
    """Put a tensor with its right record."""
    tensors[name] = t.contiguous()
    data["tensors"][name] = {
        "dtype": SAFETENSORS_NAMES[t.dtype],
        "shape": list(t.shape),
        "sha256": hashlib.sha256(bits(t)).hexdigest(),
    }


def drop(data: dict[str, Any], tensors: dict[str, torch.Tensor], name: str) -> None:
    del data["tensors"][name], tensors[name]


def rename(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    put(data, tensors, "encoder.norm.gamma", tensors[NORM])
    drop(data, tensors, NORM)


def tie_less(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    del data["ties"]["head.out.weight"]
    put(data, tensors, "head.out.weight", tensors[TABLE].clone())


def deeper(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    data["spec"]["encoder"]["n_layers"] = 2


def deep(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    inner = data["spec"]
    for _ in range(200):
        inner["a"] = inner = {}


EDITS: dict[str, tuple[Edit, str]] = {
    "renamed": (rename, "`encoder.norm.weight`; it is missing"),
    "missing": (lambda d, t: drop(d, t, NORM), "`encoder.norm.weight`; it is missing"),
    "extra": (lambda d, t: put(d, t, "extra", t[NORM]), "no place for the tensor `extra`"),
    "alias": (lambda d, t: put(d, t, ALIASES[0], t[TABLE].clone()), "no place for"),
    "shape": (lambda d, t: put(d, t, NORM, torch.ones(9)), "is [9]; the spec says [8]"),
    "rank": (lambda d, t: put(d, t, NORM, torch.ones(8, 1)), "is [8, 1]; the spec says [8]"),
    "transposed": (lambda d, t: put(d, t, TABLE, t[TABLE].T), "is [8, 11]; the spec says [11, 8]"),
    "integers": (lambda d, t: put(d, t, NORM, torch.ones(8).long()), "is I64, not BF16 or F16"),
    "floats": (lambda d, t: put(d, t, COUNTER, torch.tensor(0.0)), "is F32, not I64"),
    "dtype": (
        lambda d, t: put(d, t, COUNTER, torch.tensor(0).int()),
        "the dtype `I32` is not known",
    ),
    "unrecorded": (lambda d, t: t.update(more=torch.ones(1)), "`more` is not in the file's own"),
    "recorded": (lambda d, t: t.pop(NORM), "the tensor `encoder.norm.weight` is missing"),
    "record": (
        lambda d, t: d["tensors"][NORM].update(shape=[4, 2]),
        "its record says `F32 [4, 2]`",
    ),
    "record of a dtype": (
        lambda d, t: d["tensors"][NORM].update(dtype="BF16"),
        "is `F32 [8]`; its record says `BF16 [8]`",
    ),
    "digest": (lambda d, t: d["tensors"][NORM].update(sha256="0" * 64), f"the bytes of `{NORM}`"),
    "no digest": (lambda d, t: d["tensors"][NORM].update(sha256="0"), "no SHA-256"),
    "long digest": (lambda d, t: d["tensors"][NORM].update(sha256="0" * 65), "no SHA-256"),
    "fraction": (lambda d, t: d["tensors"][NORM].update(shape=[8.0]), "list of integers"),
    "less than nothing": (
        lambda d, t: d["tensors"][NORM].update(shape=[-8]),
        "list of integers",
    ),
    "truth": (lambda d, t: d["tensors"][NORM].update(shape=[True]), "list of integers"),
    "more in a record": (lambda d, t: d["tensors"][NORM].update(note=1), "metadata is damaged"),
    "more in the header": (lambda d, t: d.update(note=1), "metadata is damaged"),
    "wrong checksum": (lambda d, t: d.update(sha256="0" * 64), "metadata is damaged"),
    "no ties": (lambda d, t: d.update(ties={}), "the tied tensors"),
    "fewer ties": (tie_less, "the tied tensors"),
    "more ties": (lambda d, t: d["ties"].update(a="b"), "the tied tensors"),
    "other ties": (lambda d, t: d["ties"].update({ALIASES[0]: NORM}), "the tied tensors"),
    "deeper": (deeper, "encoder.layers.1.ffn.up_proj.weight`; it is missing"),
    "wider": (lambda d, t: d["spec"].update(source_vocab=12), "source_vocab"),
    "format": (lambda d, t: d.update(format=2), "metadata is of the format `2`, not 1"),
    "spec format": (lambda d, t: d["spec"].update(format=99), "format"),
    "no builder": (lambda d, t: d["spec"].pop("builder"), "builder"),
    "unknown kind": (lambda d, t: d["spec"].update(builder="nothing"), "unknown builder `nothing`"),
    "unknown key": (lambda d, t: d["spec"].update(colour="red"), "unknown key `colour`"),
    "wrong type": (lambda d, t: d["spec"].update(source_vocab="many"), "must be an integer"),
    "origin": (lambda d, t: d["provenance"].update(origin=["x"]), "metadata is damaged"),
    "null": (lambda d, t: d["spec"].update(source_vocab=None), "source_vocab"),
    "deep": (deep, "deep"),
    "parent": (lambda d, t: d["spec"].update(extends="gpt2"), "extends another one"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_a_file_that_is_not_what_it_says(edit: Edit, message: str, tiny: Path) -> None:
    rewritten(tiny, lambda data, tensors: None)
    zoo.load(tiny)
    rewritten(tiny, edit)
    refused(tiny, message)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d, t: d["tensors"][NORM].update(dtype=HOSTILE),
        lambda d, t: d.update(format=HOSTILE),
        lambda d, t: put(d, t, HOSTILE, t[NORM]),
        lambda d, t: t.update({HOSTILE: t[NORM]}),
        lambda d, t: d["tensors"].update({HOSTILE: d["tensors"][NORM]}),
        lambda d, t: put(d, t, HOSTILE, t[NORM]) or d["tensors"][HOSTILE].update(shape=[4, 2]),
    ],
)
def test_what_a_hostile_file_says_does_not_flood_a_terminal(edit: Edit, tiny: Path) -> None:
    rewritten(tiny, edit)
    told = str(refused(tiny, "xxx..."))
    assert len(told) < 1000
    assert "\x1b" not in told


HOSTILE = "\x1b[2J" + "x" * 10_000


def test_all_that_is_wrong_is_told_at_once(tiny: Path) -> None:
    def edit(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        drop(data, tensors, NORM)
        put(data, tensors, "extra", torch.ones(1))
        put(data, tensors, "decoder.norm.weight", torch.ones(9))

    rewritten(tiny, edit)
    assert len(refused(tiny).problems) == 3


def test_where_the_plugins_came_from_is_told_and_not_held_against_them(tiny: Path) -> None:
    """A file must be loadable with the next version of a plugin; names, shapes and dtypes are
    checked."""
    rewritten(tiny, lambda data, tensors: data["provenance"]["plugins"].update({"ffn.mlp": "x 9"}))
    zoo.load(tiny)


def test_verify_false_skips_the_digests_and_nothing_else(tiny: Path) -> None:
    rewritten(tiny, EDITS["digest"][0])
    zoo.load(tiny, verify=False)
    for name in ("missing", "extra", "shape", "integers", "fewer ties", "wrong checksum"):
        rewritten(tiny, EDITS[name][0])
        refused(tiny, EDITS[name][1], verify=False)
        zoo.save(zoo.build(TINY), tiny)


def test_what_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "absent.safetensors", "there is no such weights file")
    refused(tmp_path, "there is no such weights file")
    (tmp_path / "folder.safetensors").mkdir()
    refused(tmp_path / "folder.safetensors", "there is no such weights file")
    refused(tmp_path / "a\0b.safetensors", "there is no such weights file")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load(tmp_path / "pipe.safetensors")
    assert "did you mean" not in str(caught.value)  # the pipe itself is not suggested
    with pytest.raises(zoo.WeightsError, match="did you mean `vaswani-base`"):
        zoo.load("vaswani-bass")


def test_a_model_that_is_registered_without_weights() -> None:
    with pytest.raises(zoo.RegistryError, match=r"(?s)registered with a spec.*zoo build vaswani"):
        zoo.load("vaswani-base")


# --- models that are not what their spec says -----------------------------------------------------


def untie(model: Any) -> None:
    model.head.out.weight = nn.Parameter(model.head.out.weight.detach().clone())


def tie_more(model: Any) -> None:
    model.encoder.norm.weight = model.decoder.norm.weight


def swap_ties(model: Any) -> None:
    """Swap the partners of two pairs of tied tensors; the stored names stay."""
    encoder, decoder = model.encoder, model.decoder
    decoder.norm.bias = decoder.norm.weight
    encoder.norm.bias = encoder.norm.weight


CHANGED_MODELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "extra": (lambda m: m.register_parameter("more", nn.Parameter(torch.ones(1))), "`more` is a"),
    "many extra": (
        lambda m: [m.register_parameter(f"p{i}", nn.Parameter(torch.ones(1))) for i in range(11)],
        "`p6` is a float parameter [1] in the module and absent in the layout\n  and 3 more\n",
    ),
    "extra buffer": (lambda m: m.register_buffer("more", torch.ones(1)), "`more` is a"),
    "missing": (lambda m: delattr(m.encoder, "norm"), "`encoder.norm.weight` is absent"),
    "wider": (lambda m: setattr(m.head, "out", nn.Linear(8, 12, bias=False)), "`head.out.weight`"),
    "reshaped": (lambda m: setattr(m.encoder.norm, "weight", nn.Parameter(torch.ones(9))), "[9]"),
    "frozen into a buffer": (
        lambda m: (
            delattr(m.encoder.norm, "weight"),
            m.encoder.norm.register_buffer("weight", torch.ones(8)),
        ),
        "a float buffer [8] in the module and a float parameter [8]",
    ),
    "integers": (
        lambda m: setattr(m.encoder.norm, "num_batches_tracked", torch.tensor(0.5)),
        "a float buffer [] in the module and a int64 buffer [] in the layout",
    ),
    "untied": (untie, "`head.out.weight` is tied to nothing in the module"),
    "tied": (tie_more, "`encoder.norm.weight` is tied to decoder.norm.weight in the module"),
    "tied inside": (swap_ties, "`decoder.norm.weight` is tied to decoder.norm.bias"),
    "meta": (lambda m: m.to("meta"), "on the meta device"),
    "one buffer on meta": (
        lambda m: setattr(m.encoder.norm, "num_batches_tracked", m.get_buffer(COUNTER).to("meta")),
        "on the meta device",
    ),
    "a dtype that is not stored": (
        lambda m: m.to(torch.float8_e4m3fn),
        "is torch.float8_e4m3fn, which is not stored\n"
        "      = help: cast it, by `model.to(...)`: torch.float64, torch.float32, ",
    ),
    "sparse": (
        lambda m: setattr(m.encoder.norm, "weight", nn.Parameter(torch.ones(8).to_sparse())),
        "is torch.sparse_coo, and only dense ones are stored",
    ),
    "a tensor of another library": (
        lambda m: setattr(
            m.encoder.norm, "weight", nn.Parameter(TwoTensor(torch.ones(8), torch.ones(8)))
        ),
        "`encoder.norm.weight` is a TwoTensor; only plain tensors are stored",
    ),
    "no tensor": (
        lambda m: setattr(m.encoder, "norm", DynamicallyQuantized(8, 8)),
        "save the model before it is quantized",
    ),
    "adapter": (
        lambda m: m.encoder.norm.register_parameter("lora_A", nn.Parameter(torch.ones(2))),
        "an adapter is merged into the weights first",
    ),
    "no spec": (lambda m: delattr(m, "spec"), "knows the spec"),
}


def test_what_holds_a_model_is_not_saved_in_its_place(tmp_path: Path) -> None:
    model = zoo.build(TINY)
    held: dict[str, nn.Module | object]
    held = {"_orig_mod": torch.compile(model), "module": nn.DataParallel(model)}
    adapted = nn.Sequential(model)
    adapted.merge_and_unload = lambda: model  # as a `PeftModel` has it
    held["save what `merge_and_unload\\(\\)` returns"] = adapted
    zoo.save(model, tmp_path / "texts")
    held["save the model inside: `.transformer`"] = zoo.TextModel.load(tmp_path / "texts")
    shutil.rmtree(tmp_path / "texts")
    held["the model comes first: `zoo.save\\(model, path\\)`"] = "model"
    for told, other in {**held, "not this `OrderedDict`": model.state_dict()}.items():
        with pytest.raises(zoo.WeightsError, match=told) as error:
            zoo.save(other, tmp_path / "model")  # type: ignore[arg-type]
        assert "of its spec" not in str(error.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("change", "message"), CHANGED_MODELS.values(), ids=CHANGED_MODELS)
def test_a_model_that_was_changed_is_not_saved(
    change: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    model = zoo.build(TINY)
    change(model)
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.save(model, tmp_path / "folder" / "model.safetensors")
    assert message in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 600}], ids=["file", "shards"])
def test_a_model_that_learns_meanwhile_is_not_saved(
    options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a thread beside that of training. What was there before stays."""
    model = zoo.build(TINY)
    old = zoo.build(TINY, seed=1)
    zoo.save(old, tmp_path, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    hashed = saving._records

    def then_step(tensors: dict[str, torch.Tensor]) -> dict[str, Record]:
        records = hashed(tensors)
        optimizer.step()
        return records

    monkeypatch.setattr(saving, "_records", then_step)
    with pytest.raises(zoo.WeightsError, match="was changed while the model was saved"):
        zoo.save(model, tmp_path, **options)
    monkeypatch.undo()
    assert everything(zoo.load(tmp_path)) == everything(old)
    zoo.save(model, tmp_path, **options)
    assert everything(zoo.load(tmp_path)) == everything(model)


def test_a_model_is_saved_in_inference_mode(tmp_path: Path) -> None:
    """Where torch does not count the changes of a tensor."""
    with torch.inference_mode():
        model = zoo.build(TINY)
        zoo.save(model, tmp_path)
    assert everything(zoo.load(tmp_path)) == everything(model)


def test_the_largest_is_begun_first() -> None:
    begun: list[str] = []

    def work(name: str) -> str:
        begun.append(name)
        return name.upper()

    sizes = {"a": 1, "b": 3, "c": 2}
    assert on_all_cores(work, sizes, n_threads=1) == {"a": "A", "b": "B", "c": "C"}
    assert begun == ["b", "c", "a"]
