"""`zoo.table` and `zoo table`: a row for each model, with its sizes and what differs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import zoo
from zoo.cli import run
from zoo.reports.columns import Value, differing
from zoo.reports.table import table_text

NAME = 'name = "(.*)"'
BASE: dict[str, Any] = {
    "format": 1,
    "name": "base",
    "builder": "decoder",
    "vocab": 50,
    "n_layers": 4,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 32,
    "position": "rotary",
}


def spec(name: str, **changes: Any) -> dict[str, Any]:
    return {**BASE, "name": name, **changes}


def test_a_sweep_has_a_column_for_each_key_that_was_changed() -> None:
    sweep = [spec(f"{d}-{h}", d_model=d, n_heads=h) for d in (16, 32) for h in (2, 4)]
    rows = zoo.table(sweep)
    assert [list(row) for row in rows] == [["name", "parameters", "d_model", "n_heads"]] * 4
    assert [(row["d_model"], row["n_heads"]) for row in rows] == [
        (16, 2),
        (16, 4),
        (32, 2),
        (32, 4),
    ]
    for row in rows:
        d = row["d_model"]
        layer = 4 * (d * d + d) + (d * 32 + 32) + (32 * d + d) + 2 * 2 * d
        assert row["parameters"] == 50 * d + 4 * layer + 2 * d + 50 * d


def test_operations_and_cache_of_a_sequence() -> None:
    window = {"per_layer": [5, 5, "none", 5]}
    rows = zoo.table([BASE, spec("windowed", self_attn={"window": window})], 12)
    weights = 4 * (4 * 16 * 16 + 2 * 16 * 32) + 16 * 50
    attention = 4 * 2 * 12 * 16
    assert [row["flops_per_token"] for row in rows] == [2 * (weights + attention)] * 2
    key_and_value = 2 * 16 * 2  # elements of a layer and token, in bfloat16
    assert [row["cache_bytes"] for row in rows] == [
        4 * 12 * key_and_value,
        (12 + 3 * 5) * key_and_value,
    ]
    assert [row["window"] for row in rows] == ["none", window]
    short = zoo.table([BASE, spec("windowed", self_attn={"window": window})], 3)
    assert [row["cache_bytes"] for row in short] == [4 * 3 * key_and_value] * 2


def test_a_cache_of_source_tokens_and_a_state() -> None:
    both = {"builder": "encoder_decoder", "source_vocab": 50, "target_vocab": 50}
    pair = {key: value for key, value in BASE.items() if key != "vocab"} | both
    (row,) = zoo.table([pair], 6)
    assert row["cache_bytes"] == 4 * (6 + 6) * 2 * 16 * 2
    (row,) = zoo.table([spec("linear", attention="linear", position="none")], 6)
    whole = zoo.read_spec(spec("linear", attention="linear", position="none")).summary()
    assert whole["kv_cache_bytes_per_token"]["bfloat16"] == 0
    assert row["cache_bytes"] == whole["state_bytes_per_sequence"]


def test_a_model_that_generates_nothing_has_no_cache() -> None:
    rows = zoo.table([BASE, spec("encoder", builder="encoder", head="none")], 6)
    assert [row["cache_bytes"] for row in rows] == [4 * 6 * 2 * 16 * 2, None]


def test_only_experts_make_a_column_of_active_parameters() -> None:
    experts = {"kind": "moe", "n_experts": 8, "top_k": 2}
    dense, sparse = zoo.table([BASE, spec("sparse", ffn=experts)])
    assert dense["active"] == dense["parameters"]
    expert = 3 * 16 * 32 + 2 * 32 + 16
    assert sparse["parameters"] - sparse["active"] == 4 * 6 * expert
    assert (dense["ffn"], sparse["ffn"]) == ("mlp", "moe")
    assert (dense["n_experts"], sparse["n_experts"]) == (None, 8)


def test_layers_of_different_kinds() -> None:
    rules = [{"every": 2, "ffn": {"kind": "moe", "n_experts": 8, "top_k": 2}}]
    mixed, _ = zoo.table([spec("mixed", decoder={"layers": rules}), BASE])
    assert mixed["ffn"] == {"per_layer": ["mlp", "moe", "mlp", "moe"]}
    assert mixed["top_k"] == {"per_layer": [None, 2, None, 2]}
    rules = [{"first": 1, "ffn": "mlp"}]
    experts = {"kind": "moe", "n_experts": 8, "top_k": 2}
    mixed, _ = zoo.table([spec("mixed", ffn=experts, decoder={"layers": rules}), BASE])
    assert mixed["top_k"] == {"per_layer": [None, 2, 2, 2]}
    mixed, _ = zoo.table([spec("mixed", decoder={"layers": [{"first": 1, "ffn": "none"}]}), BASE])
    assert mixed["ffn"] == {"per_layer": ["none", "mlp", "mlp", "mlp"]}


def test_a_rule_that_changes_nothing_is_no_difference() -> None:
    rules = [{"first": 2, "d_ff": 32}, {"last": 2, "position": "rotary"}]
    rows = zoo.table([BASE, spec("same", decoder={"layers": rules})])
    assert [list(row) for row in rows] == [["name", "parameters"]] * 2


def test_values_of_one_name_that_differ_in_different_ways() -> None:
    one = spec("one", self_attn={"softcap": 5.0}, head={"softcap": 7.0})
    other = spec("other", self_attn={"softcap": 5.0}, head={"softcap": 9.0})
    rows = zoo.table([BASE, one, other])
    assert [row["self_attn.softcap"] for row in rows] == ["none", 5.0, 5.0]
    assert [row["head.softcap"] for row in rows] == ["none", 7.0, 9.0]


def test_a_value_that_differs_is_not_taken_for_equal_ones_of_its_name() -> None:
    """A model with norms after its sums has no final norm, and norms in its layers all the same."""
    rows = zoo.table(
        [spec("pre", norm="rms_norm"), spec("post", norm="rms_norm", norm_placement="post")]
    )
    assert [row["decoder.norm"] for row in rows] == ["rms_norm", None]
    assert "norm" not in rows[0]


def test_a_list_is_not_taken_for_values_of_layers() -> None:
    rows = zoo.table([BASE, spec("biased", self_attn={"bias": ["q", "k", "v", "o"][:2]})])
    assert [row["self_attn.bias"] for row in rows] == [["q", "k", "v", "o"], ["q", "k"]]


def test_equal_names_are_told_apart_by_their_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for path, width in zip(paths, (16, 32), strict=True):
        path.write_text(zoo.read_spec(spec("same", d_model=width)).to_toml())
    assert [row["name"] for row in zoo.table(paths)] == [str(path) for path in paths]
    assert zoo.table([]) == []


def test_saved_models_have_the_columns_of_their_specs(tmp_path: Path) -> None:
    """Although a saved spec states every value: those that only its kinds imply are not told."""
    hybrid = {"layers": [{"first": 1, "self_attn": "mamba2", "position": "none"}]}
    specs = [
        BASE,
        spec("hybrid", decoder=hybrid),
        spec("moe", ffn={"kind": "moe", "n_experts": 2, "top_k": 1}),
        spec("post", norm_placement="post"),
        spec("short", position={"kind": "learned", "max_length": 8}),
        spec("shared", n_kv_heads=2),
    ]
    files = [tmp_path / f"{one['name']}.safetensors" for one in specs]
    for one, file in zip(specs, files, strict=True):
        zoo.save(zoo.build(one), file)
    expected = zoo.table(specs)
    found = zoo.table(files)
    assert zoo.table([zoo.load(file).spec for file in files]) == found
    # Whether a kind was stated is not known of a saved spec. That of `post` is `none`.
    assert [row.pop("decoder.norm") for row in found] == [
        *["layer_norm"] * 3,
        None,
        *["layer_norm"] * 2,
    ]
    assert found == expected
    assert {"self_attn", "n_experts", "norm_placement", "max_length"} <= expected[0].keys()
    assert not {"state_size", "qk_norm", "head_dim"} & expected[0].keys()


def test_saved_models_of_two_builders_are_told_apart_by_them(tmp_path: Path) -> None:
    for builder in ("decoder", "encoder"):
        zoo.save(zoo.build(spec(builder, builder=builder)), tmp_path / builder)
    rows = zoo.table([tmp_path / "decoder", tmp_path / "encoder"])
    assert [row["builder"] for row in rows] == ["decoder", "encoder"]


@pytest.mark.parametrize(
    "spec", ["gpt2", Path("tiny.toml"), BASE, zoo.read_spec(BASE), zoo.build(BASE)]
)
def test_no_list_of_models(spec: Any) -> None:
    with pytest.raises(zoo.InputError, match="`specs` is a list, of one model too"):
        zoo.table(spec)


def test_too_many_tokens() -> None:
    with pytest.raises(zoo.InputError, match="base has 8 positions"):
        zoo.table([spec("base", position={"kind": "learned", "max_length": 8})], 9)


def test_the_docs_show_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "inspect.md").read_text()
    page = page[page.index("## Many models at once") :]
    monkeypatch.chdir(tmp_path)
    for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        Path(f"{re.findall(NAME, text)[0]}.toml").write_text(text)
    arguments = ["gpt2", "narrow.toml", "windowed.toml", "--flops", "1024"]
    assert run(["table", *arguments]) == 0
    found = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert found is not None
    assert capsys.readouterr().out == found[1]
    assert run(["table", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == zoo.table(arguments[:3], 1024)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ([512, 512, "none", 512, 512, "none"], "(512 x 2, none) x 2"),
        ([512, 512, "none", 512, 512, "none", 512], "(512 x 2, none) x 2, 512"),
        ([1, 1, 1, 2], "1 x 3, 2"),
        ([None, True, None, True], "(none, true) x 2"),
        (list(range(100)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,..."),
    ],
)
def test_values_of_layers_as_text(layers: list[Any], told: str) -> None:
    text = table_text([{"name": "a", "x": {"per_layer": layers}}])
    assert text.splitlines()[1] == f"a     {told}"


def test_a_value_that_some_have_stands_behind_the_one_before_it() -> None:
    one, other = (dict.fromkeys(keys, Value(n, True)) for n, keys in enumerate(("ad", "abcd")))
    assert [name for name, _ in differing([one, other], ())] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("n_models", "width", "turned"), [(2, 28, False), (2, 29, True), (3, 29, False)]
)
def test_a_wide_table_of_few_models_is_turned(n_models: int, width: int, turned: bool) -> None:
    """With `width` 28, its lines have 100 characters."""
    rows = [{"name": f"m{n}", "x" * 64: n, "y": "y" * width} for n in range(n_models)]
    lines = table_text(rows).splitlines()
    if turned:
        assert lines[:2] == [
            "name" + " " * 62 + "m0" + " " * 29 + "m1",
            "x" * 64 + "  0" + " " * 30 + "1",
        ]
    else:
        assert lines[0] == f"name  {'x' * 64}  y"
        assert lines[2] == f"m1    {'1':>64}  {'y' * width}"
