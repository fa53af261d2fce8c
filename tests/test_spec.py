"""Specs: short and full form, inheritance of values, `extends`, and the origins of values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import TypeAdapter, ValidationError
from random_specs import REGISTRY, specs
from small_specs import EXAMPLES

import zoo
from zoo.cli import run
from zoo.component import PositiveFloat, Probability, Size
from zoo.layout import Layout, vector
from zoo.resolving.layer_rules import RuleError, selected
from zoo.showing.full_form import to_toml
from zoo.slots import Builder
from zoo.spec import ModelSpec

SHORT = """format = 1
name = "small"
builder = "encoder_decoder"
source_vocab = 10
target_vocab = 11
n_layers = 2
d_model = 8
n_heads = 2
d_ff = 16
"""


def read(*lines: str, base: str = SHORT) -> ModelSpec:
    return zoo.read_spec(base + "".join(f"{line}\n" for line in lines))


def at(spec: ModelSpec, path: str) -> Any:
    """Return the value at a dotted path of the full form."""
    value: Any = spec.to_dict()
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


# --- short form ---------------------------------------------------------------------------------


def test_a_name_is_short_for_a_table_with_a_kind() -> None:
    assert read('ffn = "glu"') == read('ffn = { kind = "glu" }') == read('[ffn]\nkind = "glu"')
    assert at(read('ffn = "glu"'), "decoder.block.ffn.kind") == "glu"


def test_a_slot_that_nothing_names_gets_the_default_of_the_registry() -> None:
    assert at(read(), "encoder.block.ffn.kind") == "mlp"
    assert at(read(), "encoder.norm.kind") == "layer_norm"


STACKS = ("encoder", "decoder")
NORMS = [f"{stack}.{norm}" for stack in STACKS for norm in ("norm", "block.ffn.norm")]


def test_a_slot_without_a_default_needs_a_kind() -> None:
    """A registry without the zoo's own plugins has the defaults of its author, or none."""
    registry = zoo.load_registry()
    del (without := {**registry.defaults})["ffn"]
    registry = replace(registry, defaults=without)
    with pytest.raises(zoo.SpecError, match=r"`encoder\.block\.ffn` needs a `kind`") as found:
        zoo.read_spec(SHORT, registry=registry)
    assert "`glu`" in found.value.problems[0].help
    zoo.read_spec(f'{SHORT}ffn = "glu"', registry=registry)


def test_shared_values_are_stated_once_for_all_that_read_them() -> None:
    spec = read("dropout = 0.25")
    for stack in STACKS:
        assert at(spec, f"{stack}.d_model") == 8
        for part in ("block", "block.self_attn", "block.ffn", "embedding"):
            assert at(spec, f"{stack}.{part}.dropout") == 0.25
    assert at(spec, "decoder.block.cross_attn.n_heads") == 2


def test_the_nearest_value_counts() -> None:
    spec = read(
        "dropout = 0.25",
        "[encoder]",
        "dropout = 0.5",
        "[encoder.block.ffn]",
        "dropout = 0.75",
        "[decoder.block]",
        "dropout = 0.125",
    )
    assert at(spec, "encoder.block.ffn.dropout") == 0.75
    assert at(spec, "encoder.block.self_attn.dropout") == 0.5
    assert at(spec, "encoder.embedding.dropout") == 0.5
    assert at(spec, "decoder.block.dropout") == 0.125
    assert at(spec, "decoder.block.ffn.dropout") == 0.125
    assert at(spec, "decoder.embedding.dropout") == 0.25


def test_a_value_that_is_not_shared_stays_in_its_table() -> None:
    spec = read("[encoder.block.ffn]", 'activation = "gelu"')
    assert at(spec, "encoder.block.ffn.activation") == "gelu"
    assert at(spec, "decoder.block.ffn.activation") == "relu"
    with pytest.raises(zoo.SpecError, match="unknown key `activation`"):
        read('activation = "gelu"')


def test_a_slot_table_fills_every_slot_of_its_name_within() -> None:
    spec = read('norm = "rms_norm"', "[decoder]", 'norm = "layer_norm"')
    assert [at(spec, f"{norm}.kind") for norm in NORMS] == [
        "rms_norm",
        "rms_norm",
        "layer_norm",
        "layer_norm",
    ]


def test_a_slot_is_named_by_its_slot_or_by_itself() -> None:
    """`attention` fills self_attn and cross_attn; the slot's own name takes precedence."""
    attention = 'attention = { kind = "multi_head", bias = false }'
    spec = read(attention, 'cross_attn = { kind = "multi_head", bias = ["q"] }')
    assert at(spec, "encoder.block.self_attn.bias") == []
    assert at(spec, "decoder.block.cross_attn.bias") == ["q"]


def test_tuples_in_data_are_arrays() -> None:
    def spec(of: type[list[Any]] | type[tuple[Any, ...]]) -> ModelSpec:
        rules = {"layers": of([{"at": of([0, 1]), "d_ff": 4}])}
        attention = {"kind": "multi_head", "bias": of(["q", "k"])}
        sizes = {"vocab": 11, "n_layers": 3, "d_model": 8, "n_heads": 2, "d_ff": 8}
        head = {"format": 1, "name": "data", "builder": "decoder"}
        return zoo.read_spec({**head, **sizes, "attention": attention, "decoder": rules})

    assert spec(tuple) == spec(list)
    assert spec(tuple).digest == spec(list).digest
    assert at(spec(tuple), "decoder.block.self_attn.bias") == ["q", "k"]


def test_slot_tables_of_one_kind_are_merged_key_by_key() -> None:
    """The nearer value takes precedence; a table without a kind has that of the outer table."""
    spec = read(
        'norm = { kind = "layer_norm", eps = 0.5, bias = false }',
        "[encoder]",
        "norm = { eps = 0.25 }",
        "[decoder]",
        'norm = { kind = "layer_norm", bias = true }',
    )
    assert at(spec, "encoder.block.ffn.norm.eps") == 0.25
    assert at(spec, "encoder.block.ffn.norm.bias") is False
    assert at(spec, "decoder.block.ffn.norm.eps") == 0.5
    assert at(spec, "decoder.block.ffn.norm.bias") is True


def test_another_kind_drops_what_stood_beside_the_first() -> None:
    spec = read(
        'norm = { kind = "layer_norm", eps = 0.5 }', "[encoder]", 'norm = { kind = "rms_norm" }'
    )
    assert at(spec, "encoder.norm") == at(read('norm = "rms_norm"'), "encoder.norm")
    assert at(spec, "decoder.norm.eps") == 0.5


@pytest.mark.parametrize(
    ("rule", "layers"),
    [
        ({"every": 2}, [1, 3, 5]),
        ({"every": 2, "start": 0}, [0, 2, 4, 6]),
        ({"every": 3, "start": 5}, [5]),
        ({"first": 2}, [0, 1]),
        ({"last": 2}, [5, 6]),
        ({"last": 7}, [0, 1, 2, 3, 4, 5, 6]),
        ({"at": [4, 0]}, [0, 4]),
    ],
)
def test_the_layers_that_a_rule_means(rule: dict[str, Any], layers: list[int]) -> None:
    assert selected(rule, 7) == layers


@pytest.mark.parametrize(
    ("rule", "key", "message"),
    [
        ({}, None, "needs one of"),
        ({"first": 1, "last": 1}, "last", "cannot have both `first` and `last`"),
        ({"first": 1, "start": 0}, "start", "goes with `every`"),
        ({"first": 0}, "first", "at least 1"),
        ({"last": True}, "last", "at least 1"),
        ({"first": 8}, "first", "the stack has 7 layers"),
        ({"last": 8}, "last", "the stack has 7 layers"),
        ({"every": 8}, "every", "none of the 7 layers"),
        ({"every": 2, "start": -1}, "start", "the number of a layer"),
        ({"at": 3}, "at", r"write `\[3\]`"),
        ({"at": []}, "at", "a list of layer numbers"),
        ({"at": [7]}, "at", "they are 0 to 6"),
        ({"at": [-1]}, "at", "they are 0 to 6"),
        ({"at": [2, 2]}, "at", "twice"),
    ],
)
def test_a_rule_that_means_no_layers(rule: dict[str, Any], key: str | None, message: str) -> None:
    with pytest.raises(RuleError, match=message) as error:
        selected(rule, 7)
    assert error.value.key == key


def test_layer_rules_take_what_stands_around_them() -> None:
    spec = read(
        "dropout = 0.5",
        "[[encoder.layers]]",
        "first = 1",
        'ffn = { kind = "glu" }',
        "d_ff = 4",
    )
    group = at(spec, "encoder.layers.0")
    assert group["at"] == [0]
    assert group["block"]["ffn"]["kind"] == "glu"
    assert (group["block"]["ffn"]["d_ff"], group["block"]["ffn"]["dropout"]) == (4, 0.5)
    assert at(spec, "encoder.block.ffn.kind") == "mlp"


# The block's own table, the rule, the resulting value in the rule's layers, and in the others.
BESIDE = {
    "a value, and the same of one component": (
        ("[decoder.block.ffn]", "dropout = 0.3"),
        ("dropout = 0.4",),
        {"dropout": 0.4, "self_attn.dropout": 0.4, "ffn.dropout": 0.3},
        {"dropout": 0.5, "self_attn.dropout": 0.5, "ffn.dropout": 0.3},
    ),
    "the same place in both": (
        ("[decoder.block]", "dropout = 0.2", "[decoder.block.ffn]", "dropout = 0.3"),
        ("block = { dropout = 0.4, ffn = { dropout = 0.1 } }",),
        {"dropout": 0.4, "self_attn.dropout": 0.4, "ffn.dropout": 0.1},
        {"dropout": 0.2, "self_attn.dropout": 0.2, "ffn.dropout": 0.3},
    ),
    "another kind, in the same place": (
        ("[decoder.block.ffn]", 'kind = "glu"', "d_ff = 24", "dropout = 0.3"),
        ('block.ffn = "mlp"',),
        {"ffn.kind": "mlp", "ffn.d_ff": 16, "ffn.dropout": 0.5},
        {"ffn.kind": "glu", "ffn.d_ff": 24, "ffn.dropout": 0.3},
    ),
    "a kind, and a table without one": (
        ("[decoder.block.ffn]", "d_ff = 24"),
        ('ffn = "glu"',),
        {"ffn.kind": "glu", "ffn.d_ff": 24},
        {"ffn.kind": "mlp", "ffn.d_ff": 24},
    ),
    "a value of the stack": (
        ("[decoder]", "dropout = 0.2", 'ffn = { kind = "glu", d_ff = 24 }'),
        ("dropout = 0.4", 'ffn = "mlp"'),
        {"dropout": 0.4, "ffn.dropout": 0.4, "ffn.kind": "mlp", "ffn.d_ff": 16},
        {"dropout": 0.2, "ffn.dropout": 0.2, "ffn.kind": "glu", "ffn.d_ff": 24},
    ),
}


@pytest.mark.parametrize(("own", "rule", "there", "elsewhere"), BESIDE.values(), ids=BESIDE)
def test_a_rule_beside_what_the_block_states(
    own: tuple[str, ...],
    rule: tuple[str, ...],
    there: dict[str, Any],
    elsewhere: dict[str, Any],
) -> None:
    """A rule takes precedence over the stack, and the block's own table over the rule, unless the
    rule states the value in the same place; a rule without any effect is refused."""
    spec = read("dropout = 0.5", *own, "[[decoder.layers]]", "first = 1", *rule)
    for place, expected in (("layers.0.block", there), ("block", elsewhere)):
        found = {key: at(spec, f"decoder.{place}.{key}") for key in expected}
        assert found == expected


# --- full form ----------------------------------------------------------------------------------


@given(data=specs())
@settings(max_examples=100)
def test_the_full_form_reads_back_as_the_same_spec(data: dict[str, Any]) -> None:
    spec = zoo.read_spec(data, registry=REGISTRY)
    again = zoo.read_spec(spec.to_toml(), registry=REGISTRY)
    assert again == spec
    assert again.digest == spec.digest
    assert again.to_toml() == spec.to_toml()
    assert tomllib.loads(spec.to_toml()) == spec.to_dict()
    assert zoo.read_spec(spec.to_dict(), registry=REGISTRY) == spec


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_full_form_of_every_example_reads_back(path: Path) -> None:
    spec = zoo.read_spec(path)
    assert zoo.read_spec(spec.to_toml()) == spec


def test_the_full_form_states_every_field() -> None:
    """Nothing is left to a default: each component's keys are the fields of its description."""
    spec = read("[[decoder.layers]]", "at = [0]", "dropout = 0.5")

    def check(component: Any, table: dict[str, Any]) -> None:
        fields = set(type(component).model_fields)
        for name in fields & table.keys():
            part = getattr(component, name)
            if isinstance(table[name], dict):
                check(part, table[name])
        assert table.keys() <= fields
        optional = {name for name in fields if getattr(component, name) is None}
        given_ = fields - optional - table.keys()
        assert all("Given" in repr(type(component).model_fields[name].metadata) for name in given_)

    table = spec.to_dict()
    assert (table.pop("format"), table.pop("name")) == (1, "small")
    check(spec.model, {"kind": table.pop("builder"), **table})
    assert at(spec, "decoder.layers.0.at") == [0]


# --- extends ------------------------------------------------------------------------------------

Write = Callable[..., Path]


@pytest.fixture
def write(project: Path) -> Write:
    def write_(name: str, *lines: str, extends: str | None = None) -> Path:
        head = f'extends = "{extends}"\nname = "{name}"\n' if extends else SHORT
        path = project / f"{name}.toml"
        path.write_text(head + "".join(f"{line}\n" for line in lines))
        return path

    return write_


def test_extends_takes_what_it_does_not_state(write: Write) -> None:
    write("base", "dropout = 0.5", "[encoder]", "n_layers = 3")
    spec = zoo.read_spec(write("child", "n_heads = 4", "[encoder]", "d_ff = 4", extends="base"))
    assert spec.name == "child"
    assert at(spec, "decoder.block.self_attn.n_heads") == 4
    assert at(spec, "encoder.n_layers") == 3
    assert at(spec, "encoder.block.ffn.d_ff") == 4
    assert at(spec, "encoder.block.ffn.dropout") == 0.5


def test_extends_through_several_specs(write: Write) -> None:
    write("one", "dropout = 0.5")
    write("two", "dropout = 0.25", "pad_id = 1", extends="one")
    spec = zoo.read_spec(write("three", "pad_id = 2", extends="two"))
    assert at(spec, "encoder.block.dropout") == 0.25
    assert at(spec, "encoder.pad_id") == 2
    assert spec == zoo.read_spec(SHORT.replace("small", "three") + "dropout = 0.25\npad_id = 2\n")


@pytest.mark.parametrize("output", ["run", "run.safetensors"])
def test_extends_a_saved_model(output: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write("base", "dropout = 0.5")
    folder = base.parent
    zoo.save(zoo.build(base), folder / output)
    change = ["[decoder.block.ffn]", "d_ff = 24", "[encoder]", "n_layers = 3"]
    child = zoo.read_spec(write("child", *change, extends="run"))
    short = write("short", "[decoder]", "d_ff = 24", "[encoder]", "n_layers = 3", extends="base")
    assert child.to_dict() == zoo.read_spec(short).to_dict() | {"name": "child"}
    monkeypatch.chdir(folder)
    assert zoo.read_spec({"extends": "run"}) == zoo.read_spec(base)
    # A spec goes before it, and so does a model of the registry.
    write("run", "dropout = 0.25")
    assert at(zoo.read_spec({"extends": "run"}), "encoder.block.dropout") == 0.25
    zoo.save(zoo.build(base), folder / "gpt2")
    assert zoo.read_spec({"extends": "gpt2"}) == zoo.read_spec("gpt2")


def test_shards_can_be_extended(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write("base")
    zoo.save(zoo.build(base), base.parent / "run", max_shard_bytes=2000)
    monkeypatch.chdir(base.parent)
    assert len(list((base.parent / "run").glob("*.safetensors"))) > 1
    assert zoo.read_spec({"extends": "run"}) == zoo.read_spec(base)


def test_extends_a_model_of_the_registry(write: Write) -> None:
    child = zoo.read_spec(write("child", "n_layers = 1", extends="vaswani-base"))
    base = zoo.read_spec("vaswani-base")
    assert at(child, "encoder.n_layers") == 1
    assert at(child, "encoder.d_model") == at(base, "encoder.d_model") == 512
    # A file beside the spec takes precedence.
    write("vaswani-base")
    assert at(zoo.read_spec("child.toml"), "encoder.d_model") == 8


def test_data_and_text_extend_a_spec_in_the_working_directory(write: Write) -> None:
    write("base", "dropout = 0.5")
    child = {"extends": "base", "name": "child", "n_heads": 4}
    text = 'extends = "base"\nname = "child"\nn_heads = 4\n'
    assert at(zoo.read_spec(child), "encoder.block.dropout") == 0.5
    assert zoo.read_spec(child) == zoo.read_spec(text)
    missing = r"<data>: extends: .*`bsae` in the working directory or.*\n.*did you mean `base`"
    with pytest.raises(zoo.SpecError, match=missing):
        zoo.read_spec({"extends": "bsae", "name": "child"})


def test_a_change_of_kind_drops_what_is_inherited_beside_it(write: Write) -> None:
    write("base", 'norm = { kind = "layer_norm", eps = 0.5, bias = false }')
    other = zoo.read_spec(write("other", 'norm = "rms_norm"', extends="base"))
    assert at(other, "encoder.norm") == at(read('norm = "rms_norm"'), "encoder.norm")
    same = zoo.read_spec(
        write("same", 'norm = { kind = "layer_norm", eps = 0.25 }', extends="base")
    )
    assert (at(same, "encoder.norm.eps"), at(same, "encoder.norm.bias")) == (0.25, False)
    unnamed = zoo.read_spec(write("unnamed", "norm = { eps = 0.25 }", extends="base"))
    assert at(unnamed, "encoder.norm") == at(same, "encoder.norm")
    named = zoo.read_spec(write("named", 'norm = "layer_norm"', extends="base"))
    assert (at(named, "encoder.norm.eps"), at(named, "encoder.norm.bias")) == (0.5, False)
    more = zoo.read_spec(write("more", "norm = { eps = 0.25 }", extends="other"))
    assert (at(more, "encoder.norm.kind"), at(more, "encoder.norm.eps")) == ("rms_norm", 0.25)


def test_an_inherited_key_that_a_change_leaves_without_effect_is_no_error(write: Write) -> None:
    """The child cannot remove it from its parent's file."""
    write("base", "max_length = 9")
    lines = ['ffn = "residual_stack"', 'position = "none"']  # these do not read d_ff and max_length
    spec = zoo.read_spec(write("child", *lines, extends="base"))
    assert at(spec, "encoder.block.ffn.kind") == "residual_stack"
    decoder = zoo.read_spec(write("lm", 'builder = "decoder"', "vocab = 5", extends="base"))
    assert at(decoder, "vocab") == 5
    grandchild = zoo.read_spec(write("grandchild", "dropout = 0.5", extends="child"))
    assert at(grandchild, "encoder.block.dropout") == 0.5
    nearer = write("nearer", "[encoder]", "n_heads = 1", "[decoder]", "n_heads = 4", extends="base")
    assert at(zoo.read_spec(nearer), "encoder.block.self_attn.n_heads") == 1
    # But the parent's own mistakes are errors.
    write("base", "max_lenght = 9")
    with pytest.raises(zoo.SpecError, match="unknown key `max_lenght`"):
        zoo.read_spec("child.toml")
    # So are the child's.
    write("base", "max_length = 9")
    with pytest.raises(zoo.SpecError, match="unknown key `d_ff`"):
        zoo.read_spec(write("child", *lines, "d_ff = 3", extends="base"))


# --- origins ------------------------------------------------------------------------------------


def test_show_resolved_tells_where_each_value_came_from(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("base", 'norm = { kind = "rms_norm", eps = 0.5 }')
    write("child", "n_heads = 4", "[encoder.block.ffn]", 'activation = "gelu"', extends="base")
    assert run(["show", "--resolved", "child.toml"]) == 0
    shown = capsys.readouterr().out
    origins = {}
    table = ""
    for line in shown.split("\n"):
        if head := re.fullmatch(r"\[+(.*?)\]+", line):
            table = head[1] + "."
        elif found := re.fullmatch(r"(\w+) = (.*) # (.*)", line):
            origins[table + found[1]] = found[3]
    assert origins["format"] == "base.toml:1"
    assert origins["name"] == "child.toml:2"
    assert origins["builder"] == "base.toml:3"
    assert origins["encoder.d_model"] == "base.toml:7"
    assert origins["encoder.block.self_attn.n_heads"] == "child.toml:3"
    assert origins["decoder.block.ffn.norm.kind"] == "base.toml:10"
    assert origins["decoder.block.ffn.norm.eps"] == "base.toml:10"
    assert origins["encoder.block.ffn.activation"] == "child.toml:5"
    assert origins["decoder.block.ffn.activation"] == "default"
    assert origins["encoder.block.ffn.kind"] == "default"
    assert len(origins) == len([line for line in shown.split("\n") if " = " in line])
    # It is a spec too.
    assert zoo.read_spec(shown) == zoo.read_spec("child.toml")


def test_no_name_of_a_file_adds_to_the_full_form(write: Write) -> None:
    path = write("base").rename("a\nseed = 1\n#.toml")
    found = zoo.read_spec(path)
    assert zoo.read_spec(to_toml(found.to_dict(), found.origin)) == found


# --- ties ---------------------------------------------------------------------------------------


class Tied(Builder):
    """Four vectors, each of which is declared as tied to another."""

    def layout(self) -> Layout:
        return Layout({name: vector(3) for name in "abcd"})

    def ties(self) -> dict[str, str]:
        return {"b": "c", "d": "a", "c": "d"}


def test_what_is_tied_through_others_is_one_tensor() -> None:
    spec = ModelSpec("tied", Tied.model_construct(kind="tied"))
    assert spec.ties == {"b": "a", "c": "a", "d": "a"}
    assert spec.aliases == {"a": ("b", "c", "d")}
    assert list(spec.tensors) == ["a"]
    assert spec.n_parameters == 3


@pytest.mark.parametrize(
    ("kind", "least", "too_small"),
    [(Size, 1, 0), (Probability, 0.0, -0.1), (PositiveFloat, 0.1, 0.0)],
)
def test_the_ends_of_what_a_number_may_be(kind: Any, least: float, too_small: float) -> None:
    number = TypeAdapter(kind)
    assert number.validate_python(least) == least
    with pytest.raises(ValidationError, match="greater than"):
        number.validate_python(too_small)


def test_dropout_leaves_something() -> None:
    with pytest.raises(ValidationError, match="less than 1"):
        TypeAdapter(Probability).validate_python(1.0)
