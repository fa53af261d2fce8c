"""The JSON Schema of specs: it accepts every valid spec, and refuses mistakes that editors can
mark."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator as Validator
from jsonschema_rs import meta
from pydantic import create_model
from schema_errors import place
from small_specs import EXAMPLES

import zoo
from zoo.cli import run
from zoo.registry import load_registry
from zoo.schema.field_docs import class_doc, field_docs
from zoo.schema.specs import spec_schema
from zoo.schema.values import Reading, merged

HEAD = 'format = 1\nname = "small"\nbuilder = "decoder"\nvocab = 100\n'
SMALL = f"{HEAD}n_layers = 4\nd_model = 32\nn_heads = 4\nd_ff = 64\n"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    made, problems = spec_schema(load_registry())
    assert problems == []
    meta.validate(made)
    return made


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Validator:
    return Validator(schema)


def told(validator: Validator, data: object) -> list[str]:
    return [f"{place(error)}: {error.message}" for error in validator.iter_errors(data)]


# --- what is valid ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_spec_and_its_full_form_are_valid(path: Path, validator: Validator) -> None:
    assert told(validator, tomllib.loads(path.read_text())) == []
    full = zoo.read_spec(path).to_toml()
    assert told(validator, tomllib.loads(full)) == []


SCOPED = {
    "shared values around": "[decoder]\nbias = false\n[decoder.block.ffn]\ndropout = 0.1\n",
    "a slot filled from the top": 'norm = "rms_norm"\n',
    "a slot by its field's name": 'self_attn = { bias = false }\nffn = { kind = "glu" }\n',
    "a table without its kind": "attention = { bias = false }\n[decoder.block]\nffn = {}\n",
    "a kind in one table, its keys in another": (
        'ffn = "conv1d"\n[decoder]\nffn = { kernel_size = 3 }\n'
    ),
    "a number without a fraction": "embedding = { scale = 2 }\n",
    "rules": (
        "[[decoder.layers]]\nevery = 2\nstart = 0\nd_ff = 128\n"
        '[[decoder.layers]]\nlast = 1\nffn = { kind = "moe", n_experts = 4, top_k = 2 }\n'
        "[[decoder.layers]]\nat = [0, 2]\n[decoder.layers.block.self_attn]\nbias = []\n"
    ),
    "values for each layer": (
        "position = 'rotary'\ndropout = { per_layer = [0.1, 0, 0, 0.2] }\n"
        "embedding = { dropout = 0.1 }\n"
        "self_attn = { window = { per_layer = [4, 4, 'none', 8] } }\n"
        "[decoder]\nposition = { per_layer = ['rotary', 'none', "
        "{ kind = 'rotary', base = 7 }, {}] }\n"
        "[decoder.block]\nffn = { per_layer = ['mlp', 'glu', { kind = 'glu' }, { d_ff = 7 }] }\n"
    ),
    "values for each layer in a rule": (
        "position = 'rotary'\n[[decoder.layers]]\nlast = 4\nd_ff = { per_layer = [1, 2, 3, 4] }\n"
        "position = { per_layer = ['rotary', 'none', 'none', 'rotary'] }\n"
        "block = { per_layer = [{ ffn = 'glu' }, 'residual', 'residual', 'residual'] }\n"
    ),
    "a list or a word for it": 'bias = ["q", "k"]\nffn = { bias = false }\n',
}


@pytest.mark.parametrize("text", SCOPED.values(), ids=SCOPED)
def test_what_the_zoo_reads_is_valid(text: str, validator: Validator) -> None:
    spec = zoo.read_spec(SMALL + text)
    assert told(validator, tomllib.loads(SMALL + text)) == []
    assert told(validator, tomllib.loads(spec.to_toml())) == []


def test_a_child_spec_may_leave_out_what_its_parent_says(
    validator: Validator,
) -> None:
    assert told(validator, {"extends": "vaswani-base", "encoder": {"n_layers": 12}}) == []


# --- what is not --------------------------------------------------------------------------------

WRONG = {
    "no builder": ({"builder": None}, '$: "builder" is a required property'),
    "an unknown builder": ({"builder": "decodr"}, '$.builder: "decodr" is not one of'),
    "another format": ({"format": 2}, "$.format: 1 was expected"),
    "a name with a space": ({"name": "a b"}, '$.name: "a b" does not match'),
    "a parent in a folder": ({"extends": "../x"}, '$.extends: "../x" does not match'),
    "an unknown key": ({"n_head": 4}, "$: Additional properties are not allowed ('n_head'"),
    "a key of another builder": ({"source_vocab": 4}, "$: Additional properties are not allowed"),
    "an unknown kind": ({"ffn": "mpl"}, '$.ffn: "mpl" is not one of'),
    "an unknown kind in a table": (
        {"decoder": {"block": {"ffn": {"kind": "mpl"}}}},
        '$.decoder.block.ffn.kind: "mpl" is not one of',
    ),
    "an unknown key of a kind": (
        {"ffn": {"kind": "mlp", "kernel_size": 3}},
        "$.ffn: Additional properties are not allowed ('kernel_size'",
    ),
    "an unknown key without a kind": (
        {"attention": {"biass": False}},
        "$.attention: Additional properties are not allowed ('biass'",
    ),
    "an unknown key of a part": (
        {"decoder": {"n_layer": 3}},
        "$.decoder: Additional properties are not allowed ('n_layer'",
    ),
    "a number that the component is given": (
        {"ffn": {"kind": "mlp", "d_model": 32}},
        "$.ffn: Additional properties are not allowed ('d_model'",
    ),
    "a key that stands too far out": (
        {"activation": "relu"},
        "$: Additional properties are not allowed ('activation'",
    ),
    "a string for an integer": ({"d_model": "512"}, '$.d_model: "512" is not of type "integer"'),
    "a boolean for an integer": ({"n_layers": True}, '$.n_layers: true is not of type "integer"'),
    "a number that is too small": ({"n_heads": 0}, "$.n_heads: 0 is less than the minimum of 1"),
    "a share that is too large": ({"dropout": 1.0}, "$.dropout: 1.0 is greater than or equal"),
    "another word": ({"norm_placement": "last"}, '$.norm_placement: "last" is not one of'),
    "a number for a slot": ({"norm": 1e-5}, '$.norm: 0.00001 is not of type "object"'),
    "a word for a part": ({"decoder": "stack"}, '$.decoder: "stack" is not of type "object"'),
    "a wrong value of one layer": (
        {"d_ff": {"per_layer": [3, "4"]}},
        '$.d_ff.per_layer[1]: "4" is not of type "integer"',
    ),
    "an unknown kind of one layer": (
        {"ffn": {"per_layer": ["mlp", "mpl"]}},
        '$.ffn.per_layer[1]: "mpl" is not one of',
    ),
    "values for no layer": (
        {"d_ff": {"per_layer": []}},
        "$.d_ff.per_layer: [] has less than 1 item",
    ),
    "a key beside the values": (
        {"d_ff": {"per_layer": [3], "of": 4}},
        "$.d_ff: Additional properties are not allowed ('of'",
    ),
    "a value of each layer outside the layers": (
        {"vocab": {"per_layer": [4, 4, 4, 4]}},
        '$.vocab: {"per_layer":[4,4,4,4]} is not of type "integer"',
    ),
    "a rule without layers": (
        {"decoder": {"layers": [{"d_ff": 3}]}},
        '$.decoder.layers[0]: {"d_ff":3} is not valid under any of',
    ),
    "a rule with two selectors": (
        {"decoder": {"layers": [{"first": 1, "last": 1}]}},
        '$.decoder.layers[0]: {"first":1,"last":1} is valid under more than one of',
    ),
    "a rule for no layers": (
        {"decoder": {"layers": [{"every": 0}]}},
        "$.decoder.layers[0].every: 0 is less than the minimum of 1",
    ),
    "a rule for none of the layers": (
        {"decoder": {"layers": [{"at": []}]}},
        "$.decoder.layers[0].at: [] has less than 1 item",
    ),
    "a rule for a layer twice": (
        {"decoder": {"layers": [{"at": [1, 1]}]}},
        "$.decoder.layers[0].at: [1,1] has non-unique elements",
    ),
    "a start without every": (
        {"decoder": {"layers": [{"first": 1, "start": 1}]}},
        '$.decoder.layers[0]: "every" is a required property',
    ),
    "an unknown key of a rule": (
        {"decoder": {"layers": [{"first": 1, "d_f": 3}]}},
        "$.decoder.layers[0]: Additional properties are not allowed ('d_f'",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_each_mistake_is_marked_where_it_is(
    change: dict[str, Any], message: str, validator: Validator
) -> None:
    data = {**tomllib.loads(SMALL), **change}
    data = {key: value for key, value in data.items() if value is not None}
    found = told(validator, data)
    assert any(one.startswith(message) for one in found), found
    place = message.partition(": ")[0]
    assert {one.partition(": ")[0] for one in found} == {place}


def places(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every table of plain data with each of its keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from places(inner)
    elif isinstance(value, list):
        for item in value:
            yield from places(item)


@pytest.mark.parametrize("name", ["vaswani-base", "mixtral-8x7b"])
def test_a_typo_in_any_key_is_refused(name: str, validator: Validator) -> None:
    full = tomllib.loads(zoo.read_spec(name).to_toml())
    missed: list[str] = []
    for index, (_, key) in enumerate(list(places(full))):
        damaged = copy.deepcopy(full)
        table, _ = list(places(damaged))[index]
        table[f"{key}_"] = table.pop(key)
        if validator.is_valid(damaged):
            missed.append(key)
    assert missed == []


@pytest.mark.parametrize("name", ["vaswani-base", "mixtral-8x7b"])
def test_a_value_of_a_wrong_type_is_refused(name: str, validator: Validator) -> None:
    full = tomllib.loads(zoo.read_spec(name).to_toml())
    missed: list[str] = []
    for index, (_, key) in enumerate(list(places(full))):
        damaged = copy.deepcopy(full)
        table, _ = list(places(damaged))[index]
        table[key] = [[]]
        if validator.is_valid(damaged):
            missed.append(key)
    assert missed == []


# --- what an editor shows -----------------------------------------------------------------------


def test_keys_and_kinds_are_described(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    registry = load_registry()
    for slot, entries in registry.plugins.items():
        for kind in entries:
            cls = registry.plugin(slot, kind)
            table = definitions[f"{slot}.{kind}"]
            assert table["description"] == class_doc(cls)
            assert cls.__doc__ is not None
            for name, doc in field_docs(cls).items():
                if name in table["properties"] and "$ref" not in table["properties"][name]:
                    assert table["properties"][name]["description"] == doc
    mlp = definitions["ffn.mlp"]["properties"]
    assert mlp["d_ff"]["description"] == "The inner width."
    assert definitions[mlp["d_ff"]["$ref"].split("/")[-1]]["else"] == {
        "type": "integer",
        "minimum": 1,
    }
    assert mlp["kind"]["const"] == "mlp"
    assert mlp["activation"]["default"] == "relu"
    bias = definitions["attention.multi_head"]["properties"]["bias"]
    assert bias["default"] == ["q", "k", "v", "o"]
    assert field_docs(create_model("Made", key=(int, 3))) == {}  # there is no source
    assert "relu" in definitions[mlp["activation"]["$ref"].split("/")[-1]]["anyOf"][0]["enum"]
    norms = definitions["attention.multi_head"]["properties"]["norms"]["description"]
    assert norms.startswith("Which norms are there: of the sublayer")


def keys_of(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of every table, with its schema; conditions aside."""
    if isinstance(schema, dict):
        for word, inner in schema.items():
            yield from inner.items() if word == "properties" else ()
            yield from keys_of(inner) if word != "if" else ()
    elif isinstance(schema, list):
        for inner in schema:
            yield from keys_of(inner)


def test_no_key_is_without_a_description(schema: dict[str, Any]) -> None:
    missed = [key for key, value in keys_of(schema) if not {"description", "$ref"} & value.keys()]
    assert missed == []


@pytest.mark.parametrize(
    ("defaults", "told"), [([3, 3], 3), ([False, False], False), ([3, 4], None), ([3, None], None)]
)
def test_a_default_is_that_of_all_who_read_a_key(defaults: list[Any], told: Any) -> None:
    schemas = [{} if default is None else {"default": default} for default in defaults]
    assert merged([Reading("a", schema) for schema in schemas]).get("default") is told


def test_who_means_what_by_a_key_is_told_if_they_differ() -> None:
    x, y = ({"type": "integer", "description": doc} for doc in "xy")
    assert merged([Reading("a", x), Reading("b", x)])["description"] == "x"
    of_all = merged([Reading("a", x), Reading("b", y), Reading("c", x), Reading("a", x)])
    assert of_all == {"type": "integer", "description": "`a`, `c`: x\n\n`b`: y"}


def test_nothing_may_be_null_which_toml_has_not(schema: dict[str, Any]) -> None:
    assert '"null"' not in json.dumps(schema)


def test_editors_find_each_kind_and_each_key_in_any_of(schema: dict[str, Any]) -> None:
    """taplo looks for completions in `anyOf`, but not in `then` and `else`."""
    definitions = schema["$defs"]
    for slot, entries in load_registry().plugins.items():
        if slot == "builder":
            choices = schema["anyOf"]
        else:
            choices = definitions[slot]["anyOf"]
            assert choices[0]["enum"] == list(entries)
            assert len(choices[0]["x-taplo"]["docs"]["enumValues"]) == len(entries)
        table = definitions[f"any-{slot}"]
        assert {"$ref": f"#/$defs/any-{slot}"} in choices
        for kind in entries:
            known = definitions[f"{slot}.{kind}"]["properties"]
            assert known.keys() <= table["properties"].keys()


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_or_writes_the_schema(
    schema: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["schema"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads(json.dumps(schema))
    file = tmp_path / "zoo.schema.json"
    assert run(["schema", "-o", str(file)]) == 0
    assert file.read_text() == printed
    assert capsys.readouterr().out == f"{file}\n"
    assert run(["schema", "-o", str(file)]) == 0  # plugins may have changed
    assert run(["schema", "-o", str(file / "below.json")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert file.read_text() == printed
    spec = tmp_path / "spec.toml"
    spec.write_text("mine")
    assert run(["schema", "-o", str(spec)]) == 2
    assert "spec.toml does not end with .json" in capsys.readouterr().err
    assert spec.read_text() == "mine"
