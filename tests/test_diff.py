"""`zoo diff` lists exactly the differences between two specs or weights files."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from trials import process, python

import zoo
from zoo.cli import run
from zoo.reports.diff import diff_data, diff_text
from zoo.reports.sides import Side
from zoo.showing.show import resolved_text
from zoo.weights.file import Record
from zoo.weights.held_tensors import stored

SMALL = """format = 1
name = "small"
builder = "encoder_decoder"
source_vocab = 11
target_vocab = 13
n_layers = 2
d_model = 16
n_heads = 2
d_ff = 24
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(SMALL)
    return tmp_path


@pytest.fixture
def diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on `a.toml` and another text; return the status and the data."""

    def told(text: str) -> tuple[int, dict[str, Any]]:
        (folder / "b.toml").write_text(text)
        status = run(["diff", "a.toml", "b.toml", "--json"])
        return status, json.loads(capsys.readouterr().out)

    return told


def save(folder: Path, text: str, **build: Any) -> dict[str, torch.Tensor]:
    """Build and save a spec; return the tensors by stored name."""
    model = zoo.build(text, **build)
    zoo.save(model, folder)
    return {name: tensor.detach() for name, tensor in stored(model).items()}


# --- specs --------------------------------------------------------------------------------------


def test_equal_specs_have_status_0(diff: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, data = diff(SMALL)
    n_tensors = len(zoo.read_spec(SMALL).tensors)
    assert status == 0
    assert data == {
        "a": "a.toml",
        "b": "b.toml",
        "equal": True,
        "spec": [],
        "tensors": {
            "compared": ["shape"],
            "added": [],
            "removed": [],
            "changed": [],
            "equal": n_tensors,
        },
    }
    assert run(["diff", "a.toml", "b.toml"]) == 0
    told = f"a.toml and b.toml are equal: the specs, and {n_tensors} tensors by name and shape\n"
    assert capsys.readouterr().out == told


def test_another_way_to_write_the_same_spec_is_equal(diff: Any) -> None:
    status, data = diff(zoo.read_spec(SMALL).to_toml())
    assert (status, data["equal"]) == (0, True)


def test_a_shared_value_differs_wherever_it_is_read(diff: Any) -> None:
    status, data = diff(SMALL.replace("d_ff = 24", "d_ff = 32"))
    assert status == 1
    assert data["equal"] is False
    assert data["spec"] == [
        {
            "path": f"{stack}.block.ffn.d_ff",
            "a": {"value": 24, "origin": "a.toml:9"},
            "b": {"value": 32, "origin": "b.toml:9"},
        }
        for stack in ("encoder", "decoder")
    ]
    up, down = ([24, 16], [32, 16]), ([16, 24], [16, 32])
    changed = {
        f"{stack}.layers.{i}.ffn.{name}": shapes
        for stack in ("decoder", "encoder")
        for i in (0, 1)
        for name, shapes in {
            "up_proj.weight": up,
            "up_proj.bias": ([24], [32]),
            "down_proj.weight": down,
        }.items()
    }
    found = {t["name"]: (t["a"]["shape"], t["b"]["shape"]) for t in data["tensors"]["changed"]}
    assert found == changed
    assert data["tensors"]["added"] == data["tensors"]["removed"] == []


def test_text_tells_a_shared_value_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.toml").write_text(SMALL.replace("d_ff = 24", "d_ff = 32"))
    assert run(["diff", "a.toml", "b.toml"]) == 1
    lines = capsys.readouterr().out.split("\n")
    assert lines[:6] == [
        "--- a.toml",
        "+++ b.toml",
        "",
        "d_ff  [encoder.block.ffn], [decoder.block.ffn]",
        "  - 24    # a.toml:9",
        "  + 32    # b.toml:9",
    ]
    assert "~ encoder.layers.*.ffn.up_proj.weight (2 tensors)  24 x 16 -> 32 x 16" in lines


def test_a_default_is_told_as_one(diff: Any) -> None:
    _, data = diff(SMALL + 'norm = { kind = "layer_norm", eps = 1e-3 }\n')
    assert {d["path"] for d in data["spec"]} == {
        f"{stack}.{where}norm.eps"
        for stack in ("encoder", "decoder")
        for where in ("block.self_attn.", "block.ffn.", "")
    } | {"decoder.block.cross_attn.norm.eps"}
    for one in data["spec"]:
        assert one["a"] == {"value": 1e-5, "origin": "default"}
        assert one["b"] == {"value": 1e-3, "origin": "b.toml:10"}
    assert data["tensors"]["changed"] == []


def test_what_only_one_kind_has_is_told_together(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In weights too, whose values were written nowhere."""
    for name, norm in (("a", '"rms_norm"'), ("b", '{ kind = "layer_norm", bias = false }')):
        text = f"{SMALL}norm = {norm}\n"
        (folder / f"{name}.toml").write_text(text)
        save(folder / name, text)
    where = ", ".join(
        f"[{stack}.{part}norm]"
        for stack, parts in (
            ("encoder", ("block.self_attn.", "block.ffn.", "")),
            ("decoder", ("block.self_attn.", "block.cross_attn.", "block.ffn.", "")),
        )
        for part in parts
    )
    for suffix, default, stated in ((".toml", "    # default", "    # b.toml:10"), ("", "", "")):
        assert run(["diff", f"a{suffix}", f"b{suffix}"]) == 1
        out = capsys.readouterr().out
        expected = f'  - cast = "after_weight"{default}\n  + bias = false{stated}\n'
        assert f"\n\nonly in one  {where}\n{expected}" in out, out
        assert f'\n\nkind  {where}\n  - "rms_norm"' in out


def test_a_table_with_one_value_is_shown_whole(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = 'attention = { kind = "linear" }\n'
    (folder / "b.toml").write_text(SMALL + linear)
    assert run(["diff", "a.toml", "b.toml"]) == 1
    assert '\n  - qk_norm = { kind = "none" }\n' in capsys.readouterr().out


def test_a_part_that_only_one_has_is_one_difference(
    diff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL.replace("encoder_decoder", "encoder").replace("source_vocab = 11\n", "")
    status, data = diff(text.replace("target_vocab", "vocab"))
    assert status == 1
    parts = {d["path"]: d for d in data["spec"]}
    assert parts["decoder"]["b"] is None
    assert parts["decoder"]["a"]["value"]["block"]["ffn"]["d_ff"] == 24
    assert not [path for path in parts if path.startswith("decoder.")]
    assert parts["vocab"]["a"] is None
    names = {t["name"] for t in data["tensors"]["removed"]}
    expected = {name for name in zoo.read_spec(SMALL).tensors if name.startswith("decoder.")}
    assert names == expected
    run(["diff", "a.toml", "b.toml"])
    out = capsys.readouterr().out
    assert re.search(r"\n  - decoder = a table with \d+ values: d_model = 16, \.\.\.\n", out), out
    assert "\n  + vocab = 13    # b.toml:4\n" in out
    assert "\n- decoder.norm.weight  16\n" in out


@pytest.mark.parametrize(
    ("field", "one", "true"),
    [
        ("bool | int = 0", "1", "true"),
        ("tuple[bool | int, ...] = ()", "[0, 1]", "[0, true]"),
        ("tuple[bool | int, ...] = ()", "[0, 1]", "[0, 1, true]"),
    ],
)
def test_true_is_not_1(
    field: str, one: str, true: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "registry.toml").write_text('format = 1\n[ffn]\nmine = "parts.py:Mine"\n')
    (folder / "parts.py").write_text(
        "from zoo.slots import FeedForward\n\n\n"
        f'class Mine(FeedForward):\n    """Mine."""\n\n    flag: {field}\n'
    )
    for name, value in (("a", one), ("b", true), ("c", one)):
        mine = f'ffn = {{ kind = "mine", flag = {value} }}\n'
        (folder / f"{name}.toml").write_text(SMALL.replace("d_ff = 24\n", mine))
    assert run(["diff", "a.toml", "c.toml"]) == 0
    assert run(["diff", "a.toml", "b.toml"]) == 1


def test_rules_for_layers_are_compared_layer_by_layer(
    diff: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def differences(text: str) -> dict[str, tuple[object, object]]:
        _, data = diff(text)
        return {d["path"]: (d["a"]["value"], d["b"]["value"]) for d in data["spec"]}

    rule = "[[decoder.layers]]\nfirst = 1\nffn = { bias = false }\n"
    bias, activation = "block.ffn.bias", "block.ffn.activation"
    (folder / "a.toml").write_text(SMALL + rule)
    assert differences(SMALL + rule) == {}
    assert differences(SMALL) == {f"decoder.layers[0].{bias}": (False, True)}
    assert differences(SMALL + rule.replace("first", "last")) == {
        f"decoder.layers[0].{bias}": (False, True),
        f"decoder.layers[1].{bias}": (True, False),
    }
    assert differences(SMALL + rule.replace("first = 1", "every = 1")) == {
        f"decoder.layers[1].{bias}": (True, False)
    }
    more = rule + '[[decoder.layers]]\nlast = 1\nffn = { activation = "gelu" }\n'
    assert differences(SMALL + more) == {f"decoder.layers[1].{activation}": ("relu", "gelu")}
    stack = "[decoder.block]\nffn = { bias = false }\n"  # layer 0 is what it was
    assert differences(SMALL + stack) == {
        f"decoder.{bias}": (True, False),
        "decoder.layers.at": ([[0]], []),
    }
    (folder / "a.toml").write_text(SMALL)
    all_layers = rule.replace("first = 1", "every = 1")
    assert differences(SMALL + all_layers) == {f"decoder.layers[0, 1].{bias}": (True, False)}
    run(["diff", "a.toml", "b.toml"])
    heading = "\nbias  [decoder.layers[0, 1].block.ffn]\n"
    assert f"{heading}  - true    # default\n  + false    # b.toml:12\n" in capsys.readouterr().out


def test_a_rule_that_changes_nothing_is_told_by_its_layers(diff: Any) -> None:
    rule = "[[decoder.layers]]\nfirst = 1\nffn = { bias = true }\n"
    assert zoo.read_spec(SMALL + rule).digest != zoo.read_spec(SMALL).digest
    status, data = diff(SMALL + rule)
    assert status == 1
    assert data["spec"] == [
        {
            "path": "decoder.layers.at",
            "a": {"value": [], "origin": None},
            "b": {"value": [[0]], "origin": None},
        }
    ]


def test_the_docs_show_what_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "inspect.md").read_text()
    tiny, *_, wide = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (folder / "tiny.toml").write_text(tiny)
    (folder / "wide.toml").write_text(wide)
    assert run(["diff", "tiny.toml", "wide.toml"]) == 1
    (shown,) = re.findall(r"```text\n(---.*?)\.\.\.\n```", page, re.DOTALL)
    assert capsys.readouterr().out.startswith(shown)


# --- weights ------------------------------------------------------------------------------------


def test_weights_are_compared_byte_for_byte(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = save(folder / "one", SMALL, seed=0)
    second = save(folder / "two", SMALL, seed=1)
    assert run(["diff", "one", "two", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["spec"] == []
    tensors = data["tensors"]
    different = {name for name in first if not torch.equal(first[name], second[name])}
    assert {t["name"] for t in tensors["changed"]} == different
    assert 0 < len(different) < len(first)
    assert tensors["equal"] == len(first) - len(different)
    assert tensors["compared"] == ["shape", "dtype", "sha256"]
    assert run(["diff", "one", "two"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("--- one\n+++ two\n\nthe specs are equal\n\n~ ")
    assert "F32 24 x 16, other bytes" in told
    assert run(["diff", "one", "one/model.safetensors"]) == 0
    assert "byte for byte" in capsys.readouterr().out


def test_one_changed_bit_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(folder / "one", SMALL)
    model = zoo.build(SMALL)
    weight = model.get_parameter("encoder.layers.1.ffn.up_proj.weight")
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] ^= 1
    zoo.save(model, folder / "two")
    assert run(["diff", "one", "two", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (changed,) = data["tensors"]["changed"]
    assert changed["name"] == "encoder.layers.1.ffn.up_proj.weight"
    assert changed["a"]["shape"] == changed["b"]["shape"] == [24, 16]
    assert changed["a"]["sha256"] != changed["b"]["sha256"]


def test_another_dtype_changes_every_tensor(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = save(folder / "one", SMALL)
    save(folder / "two", SMALL, dtype=torch.bfloat16)
    assert run(["diff", "one", "two", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert {t["name"] for t in data["tensors"]["changed"]} == tensors.keys()
    assert {(t["a"]["dtype"], t["b"]["dtype"]) for t in data["tensors"]["changed"]} == {
        ("F32", "BF16")
    }


def test_a_spec_and_its_weights_are_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(folder / "one", SMALL)
    assert run(["diff", "a.toml", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"]["compared"] == ["shape"]


def test_a_layer_more_is_told_as_added_tensors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = save(folder / "two", SMALL)
    three = save(folder / "three", SMALL.replace("n_layers = 2", "n_layers = 3"))
    assert run(["diff", "two", "three", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    tensors = data["tensors"]
    assert {t["name"] for t in tensors["added"]} == three.keys() - two.keys()
    assert tensors["removed"] == tensors["changed"] == []
    assert tensors["equal"] == len(two)
    assert [d["path"] for d in data["spec"]] == ["encoder.n_layers", "decoder.n_layers"]


def test_tensors_that_only_one_has_differ_under_the_same_spec() -> None:
    """As after a plugin was changed."""
    spec = zoo.read_spec(SMALL)
    one, other = (Record("F32", (), digit * 64) for digit in "01")
    both, alone = Side("a", spec, {"one": one, "other": other}), Side("b", spec, {"one": one})
    for a, b, sign in ((both, alone, "-"), (alone, both, "+")):
        data = diff_data(a, b)
        assert data["equal"] is False
        assert f"\n{sign} other  F32 scalar\n" in diff_text(data)


# --- in Python ----------------------------------------------------------------------------------


def test_in_python_a_side_is_whatever_is_a_spec_or_weights(folder: Path) -> None:
    change = {"extends": "a", "name": "small", "decoder": {"d_ff": 32}}
    sides: list[Any] = [Path("a.toml"), "a.toml", SMALL, zoo.read_spec(SMALL)]
    for side in sides:
        found = zoo.diff(side, change)
        assert found["equal"] is False
        (value,) = found["spec"]
        assert value["path"] == "decoder.block.ffn.d_ff"
        assert (value["a"]["value"], value["b"]["value"]) == (24, 32)
        assert len(found["tensors"]["changed"]) == 2 * 3  # up, its bias and down, in two layers
    save(folder / "weights", SMALL)
    found = zoo.diff(folder / "weights", zoo.read_spec("a.toml"))
    assert (found["a"], found["b"]) == (str(folder / "weights"), "small")
    assert found["equal"] is True
    assert found["tensors"]["compared"] == ["shape"]


def test_in_python_anything_else_is_refused() -> None:
    model: Any = zoo.build(SMALL)
    for call in (partial(zoo.diff, SMALL), partial(zoo.flops, size=3), zoo.read_spec):
        with pytest.raises(TypeError, match="not a model, whose spec is its attribute `spec`"):
            call(model)
    assert zoo.diff(SMALL, model.spec)["equal"]
    nothing: Any
    for nothing in (None, 5):
        with pytest.raises(TypeError, match="TOML text or a dict, not "):
            zoo.diff(SMALL, nothing)


# --- errors and costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    ["nowhere", "nowhere.toml", "nowhere.safetensors", "broken.toml", "broken.safetensors"],
)
def test_what_cannot_be_read_has_status_2(
    other: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.toml").write_text(SMALL.replace("d_ff", "d_fff"))
    (folder / "broken.safetensors").write_bytes(b"\x08" + bytes(30))
    for names in ((other, "a.toml"), ("a.toml", other)):
        assert run(["diff", *names]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "error: " in shown.err


def test_the_process_ends_with_the_status_and_needs_no_torch(folder: Path) -> None:
    (folder / "b.toml").write_text(SMALL.replace("d_ff = 24", "d_ff = 32"))
    code = (
        "import sys; from zoo.cli import run\n"
        "found = [run(['diff', 'a.toml', other]) for other in ('a.toml', 'b.toml', 'c.toml')]\n"
        "sys.exit('torch' in sys.modules or found != [0, 1, 2])"
    )
    python(code, cwd=folder)
    assert process("diff", "a.toml", "b.toml").returncode == 1


def test_rules_that_are_taken_back_have_an_origin(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(f"{SMALL}\n[[decoder.layers]]\nfirst = 1\nd_ff = 8\n")
    (tmp_path / "plain.toml").write_text('extends = "small"\nname = "plain"\ndecoder.layers = []\n')
    full = resolved_text(zoo.read_spec(tmp_path / "plain.toml"))
    origins = re.findall(r"layers = \[\] # (.*)", full)
    assert origins == ["default", f"{tmp_path / 'plain.toml'}:3"]  # for encoder and decoder
