"""`zoo.load` follows its arguments and reports on every tensor."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_specs import TINY
from trials import python

import zoo
from zoo.cli import run
from zoo.store.found_weights import find_weights
from zoo.weights.file import Header, Record
from zoo.weights.reader import open_weights, read_header
from zoo.weights.tensor_reader import TensorReader

TABLE = "decoder.embed.tokens.weight"


@pytest.fixture
def tiny(project: Path) -> Path:
    zoo.save(zoo.build(TINY, seed=3), "tiny")
    return Path("tiny/model.safetensors")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


# --- only -----------------------------------------------------------------------------------------


def test_only_what_matches_is_loaded_and_the_rest_is_initial(tiny: Path) -> None:
    whole, start = zoo.load(tiny).state_dict(), zoo.build(TINY, seed=0).state_dict()
    loaded = zoo.load(tiny, only="encoder.layers.*")
    for name, tensor in loaded.state_dict().items():
        wanted = whole if name.startswith("encoder.layers.") else start
        assert same(tensor, wanted[name])
    # Otherwise the test could not distinguish them.
    differing = [name for name in whole if not torch.equal(whole[name], start[name])]
    assert any(name.startswith("encoder.layers.") for name in differing)
    assert any(not name.startswith("encoder.layers.") for name in differing)


def test_a_tied_tensor_is_loaded_by_any_of_its_names(tiny: Path) -> None:
    model = zoo.load(tiny, only=["head.*", "encoder.norm.?eight"])
    whole = zoo.load(tiny)
    assert same(model.head.out.weight, whole.head.out.weight)
    assert model.head.out.weight is model.get_parameter(TABLE)
    loaded = [row.name for row in model.load_report.tensors if row.values == "loaded"]
    assert loaded == [TABLE, "encoder.norm.weight"]


def test_partly_loaded_weights_say_so_when_they_are_saved(tiny: Path) -> None:
    digest = zoo.save(zoo.load(tiny), "again")
    zoo.save(zoo.load(tiny, only="head.*"), "part")
    told = {"part": {"only": ["head.*"], "content_digest": digest}}
    assert zoo.load("part").origin == told
    assert zoo.load(tiny, only="*").origin is None
    model = zoo.load(tiny)
    model.origin = {"family": "gpt2"}
    zoo.save(model, "imported")
    assert zoo.load("imported", only="head.*").origin == {"family": "gpt2", **told}


def test_a_pattern_that_matches_nothing_is_an_error(tiny: Path) -> None:
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load(tiny, only=["head.*", "encoder.nrm.weight", "x*"])
    assert len(caught.value.problems) == 2
    assert "no tensor has a name like `encoder.nrm.weight`" in str(caught.value)
    assert "did you mean `encoder.norm.weight`" in str(caught.value)


def test_no_pattern_is_an_error(tiny: Path) -> None:
    with pytest.raises(zoo.WeightsError, match="`only` holds no pattern"):
        zoo.load(tiny, only=[])


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("encodr.*", "did you mean `encoder.*`?"),
        ("encoder.layer.*", "did you mean `encoder.layers.*`?"),
        ("x*", "for example `decoder.*`, `encoder.*`, `head.*`"),
    ],
)
def test_the_nearest_start_of_names_is_told(pattern: str, hint: str, tiny: Path) -> None:
    with pytest.raises(zoo.WeightsError) as caught:
        zoo.load(tiny, only=pattern)
    (problem,) = caught.value.problems
    assert problem.help == hint
    n_names = len(zoo.load(tiny).state_dict())
    assert problem.message == f"no tensor has a name like `{pattern}`; there are {n_names} names"


def test_what_is_left_out_is_not_read_and_what_is_loaded_is_checked(tiny: Path) -> None:
    raw = bytearray(tiny.read_bytes())
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    raw[8 + int.from_bytes(raw[:8], "little") + header[TABLE]["data_offsets"][0]] ^= 1
    tiny.write_bytes(raw)
    zoo.load(tiny, only="encoder.layers.*")
    with pytest.raises(zoo.WeightsError, match=f"the bytes of `{TABLE}`"):
        zoo.load(tiny, only="head.*")


def test_only_loosens_nothing_else(tiny: Path) -> None:
    raw = tiny.read_bytes()
    tiny.write_bytes(raw[:-8])
    with pytest.raises(zoo.WeightsError, match="bytes long"):
        zoo.load(tiny, only="encoder.*")


# --- the report -----------------------------------------------------------------------------------


def test_a_prompt_of_python_shows_the_report_in_a_line(tiny: Path) -> None:
    report = zoo.load(tiny).load_report
    assert repr(report).startswith(f"<LoadReport {report.name}: {len(report.tensors)} tensors: ")
    assert "\n" not in repr(report)
    assert len(repr(report)) < 150


def test_the_report_accounts_for_every_tensor(tiny: Path) -> None:
    model = zoo.load(tiny, dtype=torch.bfloat16, only=["encoder.*"])
    report, state = model.load_report, model.state_dict()
    names = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
    told = [name for row in report.tensors for name in (row.name, *row.aliases)]
    assert sorted(told) == sorted(state)
    for row in report.tensors:
        # The table is the encoder's too.
        loaded = row.name.startswith("encoder.") or row.name == TABLE
        assert row.values == ("loaded" if loaded else "initial")
        assert names[row.dtype] is state[row.name].dtype
        assert row.dtype == ("I64" if row.stored == "I64" else "BF16")
        assert row.shape == tuple(state[row.name].shape)
        assert row.stored == ("I64" if row.name.endswith("num_batches_tracked") else "F32")
        assert row.cast == (loaded and row.stored == "F32")
        assert row.checked == loaded
    assert not any(row.checked for row in zoo.load(tiny, verify=False).load_report.tensors)


def test_the_command_tells_what_the_report_holds(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["load", "tiny", "--only", "encoder.*", "--dtype", "bfloat16"]
    assert run([*arguments, "--report", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in data["tensors"]}
    assert {name for row in rows.values() for name in (row["name"], *row["aliases"])} == {
        *zoo.load(tiny).state_dict()
    }
    assert rows[TABLE]["aliases"] == ["encoder.embed.tokens.weight", "head.out.weight"]
    assert (rows[TABLE]["stored"], rows[TABLE]["dtype"], rows[TABLE]["cast"]) == (
        "F32",
        "BF16",
        True,
    )
    assert rows["decoder.norm.weight"]["values"] == "initial"
    assert data["loaded"] + data["initial"] == len(rows)
    assert run([*arguments, "--report"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in rows)
    assert "tied  head.out.weight" in text
    assert f"loaded  {TABLE}  F32 -> BF16 11 x 8  sha256:" in text
    assert run(["load", "tiny"]) == 0
    assert f"{len(rows)} of {len(rows)} digests checked" in capsys.readouterr().out
    assert run(["load", "tiny", "--no-verify"]) == 0
    assert f"0 of {len(rows)} digests checked" in capsys.readouterr().out
    tiny.chmod(0o444)
    for how in ("bytes", "mmap"):
        assert run(["load", "tiny", "--read", how]) == 0
        assert f" ({how})" in capsys.readouterr().out


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture
def read_only(tiny: Path) -> Path:
    tiny.chmod(0o444)
    return tiny


def mapped_file(model: zoo.Transformer) -> bool:
    """Return whether the memory of the table is a mapping of the file, according to the system."""
    address = model.get_parameter(TABLE).data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return line.endswith("model.safetensors")
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_files_that_nobody_may_write_to_are_mapped(read_only: Path) -> None:
    assert mapped_file(zoo.load(read_only))
    assert mapped_file(zoo.load(read_only, read="mmap", verify=False))
    assert not mapped_file(zoo.load(read_only, read="bytes"))
    assert not mapped_file(zoo.load(read_only, dtype=torch.float64))
    for mode in (0o446, 0o464, 0o644):
        read_only.chmod(mode)
        assert not mapped_file(zoo.load(read_only))
    with pytest.raises(zoo.WeightsError, match="that can be written to is not mapped"):
        zoo.load(read_only, read="mmap")


@pytest.mark.parametrize("sharded", [False, True])
def test_however_it_is_read_it_is_the_same_model(sharded: bool, project: Path) -> None:
    model = zoo.build(TINY, seed=3, dtype=torch.bfloat16)
    model.encoder.norm.double()
    zoo.save(model, "model", max_shard_bytes=500 if sharded else None)
    for path in Path("model").iterdir():
        path.chmod(0o444)
    for read in ("bytes", "mmap"):
        loaded = zoo.load("model", read=read)
        assert loaded.load_report.read == read
        state = loaded.state_dict()
        assert all(same(state[name], tensor) for name, tensor in model.state_dict().items())
    for path in Path("model").iterdir():
        path.chmod(0o644)
        assert zoo.load("model").load_report.read == "bytes"
        path.chmod(0o444)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_tensor_without_elements(mapped: bool, tmp_path: Path) -> None:
    values = {"none": torch.empty(0, 3), "some": torch.tensor([1.5, -2.0])}
    content = {name: tensor.numpy().tobytes() for name, tensor in values.items()}
    records = {
        name: Record("F32", tuple(tensor.shape), hashlib.sha256(content[name]).hexdigest())
        for name, tensor in values.items()
    }
    header = Header({}, {"zoo": "1", "plugins": {}}, {}, records)
    path = tmp_path / "model.safetensors"
    path.write_bytes(header.to_bytes() + b"".join(content.values()))
    with open_weights(path) as weights:
        reader = TensorReader(
            weights, zoo.read_spec(TINY), torch.device("cpu"), None, verify=True, mapped=mapped
        )
        read = reader.read_all(records)
    assert all(same(read[name], tensor) for name, tensor in values.items())


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_a_tensor_is_read_and_hashed_in_steps(
    mode: int, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("reader", "open_file"):
        monkeypatch.setattr(f"zoo.weights.{module}.STEP", 24)
    tiny.chmod(mode)
    built = zoo.build(TINY, seed=3).state_dict()
    loaded = zoo.load(tiny).state_dict()
    assert all(same(loaded[name], tensor) for name, tensor in built.items())


def test_what_is_mapped_can_be_changed_and_the_file_is_not(read_only: Path) -> None:
    before = read_only.read_bytes()
    model = zoo.load(read_only, read="mmap")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert read_only.read_bytes() == before
    kept = zoo.load(read_only, read="mmap")
    wanted = {name: tensor.clone() for name, tensor in kept.state_dict().items()}
    zoo.save(zoo.build(TINY, seed=9), "tiny")  # replaces the name; the old file still exists
    assert all(torch.equal(kept.state_dict()[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("name", ["tiny.safetensors", "missing.safetensors"])
def test_the_garbage_collector_rests_meanwhile_and_is_left_as_it_was(
    is_on: bool, name: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[bool] = []

    def find(*given: Any) -> Any:
        meanwhile.append(gc.isenabled())
        return find_weights(*given)

    monkeypatch.setattr("zoo.loading.find_weights", find)
    gc.enable() if is_on else gc.disable()
    try:
        with contextlib.suppress(zoo.WeightsError):
            zoo.load(tiny.with_name(name))
        assert gc.isenabled() is is_on
        assert meanwhile == [False]
    finally:
        gc.enable()


def test_an_unknown_way_to_read(tiny: Path) -> None:
    with pytest.raises(zoo.WeightsError, match='as "bytes" or "mmap", not `mmapped`'):
        zoo.load(tiny, read="mmapped")  # type: ignore[arg-type]


# Truncates or overwrites a copy of the file just before its first tensor is read.
MEANWHILE = """
import os, shutil, zoo
from zoo import loading

check = loading._check_against_spec
tried = [("shorter", True), ("empty", True), ("other", False)]
for number, (read, (how, verify)) in enumerate((r, t) for r in ("bytes", "mmap") for t in tried):
    path = f"{number}.safetensors"
    shutil.copyfile("tiny/model.safetensors", path)
    os.chmod(path, 0o444)

    def meanwhile(*arguments):
        check(*arguments)
        with open(path, "r+b") as file:
            if how == "shorter":
                file.truncate(os.path.getsize(path) - 8)
            elif how == "empty":
                file.truncate(0)
            else:
                file.seek(-8, 2)
                file.write(b"changed!")
        os.utime(path, ns=(1, 1))

    loading._check_against_spec = meanwhile
    try:
        zoo.load(path, read=read, verify=verify)
    except zoo.WeightsError as error:
        print(read, how, error.problems[0].message)
"""


def test_a_file_that_changes_meanwhile_is_an_error(read_only: Path) -> None:
    """Not a signal, also for a mapped file, and even if it is changed by root."""
    if not os.access(read_only, os.W_OK):
        pytest.skip("root may write to any file, but not in every container")
    told = {
        "shorter": "it has become shorter while it was read",
        "empty": "it has become shorter while it was read",
        "other": "it was written to while it was read",
    }
    expected = [f"{read} {how} {told[how]}" for read in ("bytes", "mmap") for how in told]
    assert python(MEANWHILE).splitlines() == expected


# --- memory ---------------------------------------------------------------------------------------

PEAK = """
import sys, torch, zoo, zoo.loading, zoo.building

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

zoo.save(zoo.build("small.toml"), "small.safetensors")
zoo.load("small.safetensors")  # imports, and what torch makes on first use
zoo.building.build_on_meta(zoo.read_spec("wide.toml"), torch.float32)
before = peak()
dtype = sys.argv[1] and getattr(torch, sys.argv[1])
model = zoo.load("wide.safetensors", dtype=dtype or None, read=sys.argv[2])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(("dtype", "read"), [("", "bytes"), ("bfloat16", "bytes"), ("", "mmap")])
def test_the_peak_is_at_most_a_tenth_over_the_weights(dtype: str, read: str, project: Path) -> None:
    sizes = "vocab = 64\nn_layers = {n}\nd_model = 256\nn_heads = 4\nd_ff = 1024\n"
    for name, n in (("wide", 40), ("small", 1)):
        text = f'format = 1\nname = "{name}"\nbuilder = "decoder"\n' + sizes.format(n=n)
        Path(f"{name}.toml").write_text(text)
    zoo.save(zoo.build("wide.toml"), "wide.safetensors")
    Path("wide.safetensors").chmod(0o444)
    assert Path("wide.safetensors").stat().st_size > 120e6
    peak = int(python(PEAK, dtype, read))
    assert peak < 1.1 * Path("wide.safetensors").stat().st_size


def test_a_spec_of_earlier_days_is_read() -> None:
    """Full forms once stated values without effect. These are refused in specs that people write,
    but specs stored with weights are still loaded."""
    path = Path(__file__).parent.parent / "pretrained/beer-de-en/model.safetensors"
    stored = read_header(path).spec
    assert stored["encoder"]["block"]["self_attn"]["window_sides"] == "past"
    model = zoo.load(path)
    assert "window_sides" not in model.spec.to_dict()["encoder"]["block"]["self_attn"]
    with pytest.raises(zoo.SpecError, match="`window_sides` of"):
        zoo.read_spec(stored)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (zoo.load, "a model is loaded from a path or by the name of a model, not "),
        (zoo.build, "a spec is a path, the name of a registered model, TOML text or a dict, not "),
        (zoo.read_spec, "a spec is a path, the name of a registered model, TOML text or a dict, "),
        (lambda path: zoo.save(zoo.build(TINY), path), "a model is saved to a path, not "),
    ],
)
@pytest.mark.parametrize("value", [None, 3, b"path", ["path"]])
def test_what_is_no_path_is_told(call: Callable[[Any], Any], expected: str, value: Any) -> None:
    with pytest.raises(TypeError) as error:
        call(value)
    assert str(error.value).startswith(expected)
    assert str(error.value).endswith(f"not {type(value).__name__}")


@pytest.mark.parametrize("call", [zoo.load, zoo.build, zoo.read_spec])
def test_an_empty_path_is_not_the_working_directory(call: Callable[[str], Any]) -> None:
    with pytest.raises(zoo.ZooError, match=r"path.*, not ''"):
        call("")


@pytest.mark.parametrize("value", ["", "a\0b", "folder/a\0b.safetensors"])
def test_what_is_no_path_to_write_to(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = zoo.build(TINY)
    for write in (
        lambda: zoo.save(model, value),
        lambda: zoo.save(model, value, max_shard_bytes=1000),
        lambda: zoo.import_folder("source", value),
        lambda: zoo.export_folder("source", value),
    ):
        with pytest.raises(zoo.ZooError, match=f"path, not {re.escape(repr(value))}"):
            write()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["M.SAFETENSORS", "m.SafeTensors"])
def test_the_ending_of_a_file_may_be_of_capitals(name: str, tmp_path: Path) -> None:
    model = zoo.build(TINY)
    zoo.save(model, tmp_path / name)
    assert zoo.load(tmp_path / name).spec.digest == model.spec.digest
    assert zoo.diff(tmp_path / name, model.spec)["equal"]
    with pytest.raises(zoo.ZooError, match="holds weights"):
        zoo.read_spec(tmp_path / name)


def test_a_folder_may_have_the_ending_of_a_spec(tmp_path: Path) -> None:
    digest = zoo.save(zoo.build(TINY), tmp_path / "tiny.toml")
    assert zoo.load(tmp_path / "tiny.toml").load_report.content_digest == digest


@pytest.mark.parametrize("only", [3, ["encoder.*", None], {"encoder.*": 1}])
def test_patterns_are_text(only: Any, tmp_path: Path) -> None:
    zoo.save(zoo.build(TINY), tmp_path)
    with pytest.raises(zoo.InputError, match="`only` is a pattern or a list of them, not"):
        zoo.load(tmp_path, only=only)


def test_the_digests_that_a_model_must_have(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {
        "content_digest": read_header(tiny).content_digest,
        "spec_digest": zoo.read_spec(TINY).digest,
    }
    assert zoo.load(tiny, **stated).load_report is not None
    assert zoo.load(tiny, verify=False, spec_digest=stated["spec_digest"]) is not None
    options = [f"--{name.replace('_', '-')}={digest}" for name, digest in stated.items()]
    assert run(["load", "tiny", *options]) == 0
    other = f"sha256:{'0' * 64}"
    for name, digest in stated.items():
        with pytest.raises(zoo.WeightsError) as refused:
            zoo.load(tiny, **{**stated, name: other})
        what = name.replace("_", " ")
        assert str(refused.value) == f"{tiny}: error: the {what} is {digest}, not {other}"
    capsys.readouterr()
    assert run(["load", "tiny", f"--spec-digest={other}"]) == 2
    assert f"the spec digest is {stated['spec_digest']}, not {other}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["content_digest", "spec_digest"])
@pytest.mark.parametrize("digest", ["", "0" * 64, "sha256:12", f"sha256:{'A' * 64}", 3])
def test_what_is_no_digest(tiny: Path, name: str, digest: Any) -> None:
    with pytest.raises(zoo.InputError, match=f"`{name}` is `sha256:` and 64 digits from 0 to f"):
        zoo.load(tiny, **{name: digest})


def test_a_digest_of_tensors_that_are_not_checked(tiny: Path) -> None:
    digest = read_header(tiny).content_digest
    with pytest.raises(zoo.InputError, match="do not leave out their check"):
        zoo.load(tiny, verify=False, content_digest=digest)
