"""Values of a spec that are given for each layer: `d_ff = { per_layer = [128, 256] }`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_specs import REGISTRY
from references.stacks import built, same, spec
from references.transformer import Layer

import zoo
from zoo.showing.full_form import to_toml
from zoo.showing.show import summary_data

MLP = {"kind": "mlp"}


def each(*values: Any) -> dict[str, Any]:
    return {"per_layer": list(values)}


def read(**fields: Any) -> zoo.ModelSpec:
    """Read a spec with these fields, and without those that are None."""
    stated = spec(**fields).items()
    return zoo.read_spec({key: value for key, value in stated if value is not None})


def layers(spec: zoo.ModelSpec) -> list[Any]:
    """Return the block and the positions of each layer, from the first."""
    found: dict[int, Any] = {}
    for group in spec.model.encoder.groups:
        found |= dict.fromkeys(group.at, (group.block, group.position))
    return [found[layer] for layer in range(len(found))]


def widths(spec: zoo.ModelSpec) -> list[int]:
    names = (f"encoder.layers.{i}.ffn.up_proj.weight" for i in range(len(layers(spec))))
    return [spec.tensors[name].shape[0] for name in names]


def test_a_layer_computes_with_its_own_values(tmp_path: Path) -> None:
    model = built(
        n_layers=4,
        embedding="vectors",
        position=each("rotary", "none", {"kind": "rotary", "base": 7.0}, "none"),
        d_ff=each(12, 5, 5, 20),
        encoder={"final_norm": False, "block": {"residual_scale": each(1.0, 0.5, 0.5, 2.0)}},
        ffn={**MLP, "norms": each(["pre"], ["out"], ["pre", "post"], [])},
    )
    forms = [
        Layer(base=10000.0),
        Layer((["pre"], ["out"]), residual_scale=0.5),
        Layer((["pre"], ["pre", "post"]), residual_scale=0.5, base=7.0),
        Layer((["pre"], []), residual_scale=2.0),
    ]
    same(model, list(enumerate(forms)))
    assert widths(model.spec) == [12, 5, 5, 20]
    zoo.save(model, tmp_path / "saved")
    loaded = zoo.load(tmp_path / "saved")
    assert loaded.spec == model.spec
    assert widths(loaded.spec) == [12, 5, 5, 20]
    state = loaded.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


VALUES = {
    "d_ff": st.integers(1, 3),
    "n_heads": st.sampled_from([1, 2, 4]),
    "position": st.sampled_from(["rotary", "none", {"kind": "rotary", "base": 9.0}]),
    "self_attn": st.sampled_from([{"bias": False}, {"chunk": 3}, {"chunk": "none"}]),
    "ffn": st.sampled_from(["glu", "mlp", {"kind": "mlp", "activation": "silu"}]),
}


@given(st.data())
def test_it_means_what_a_rule_for_each_layer_means(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    keys = data.draw(st.sets(st.sampled_from(list(VALUES)), min_size=1))
    lists = {key: data.draw(st.lists(VALUES[key], min_size=n, max_size=n)) for key in sorted(keys)}
    rules = [
        {"at": [layer], **{key: values[layer] for key, values in lists.items()}}
        for layer in range(n)
    ]
    tables = {key: each(*values) for key, values in lists.items()}
    common = {"n_layers": n, "embedding": "vectors", "position": "rotary"}
    expected = zoo.read_spec(spec(**{**common, "encoder": {"layers": rules}}), registry=REGISTRY)
    place = data.draw(st.sampled_from(["top", "stack"]))
    stated = spec(**common)
    if place == "top":
        stated |= tables
    else:
        stated = {key: value for key, value in stated.items() if key not in tables}
        stated["encoder"] = tables
    found = zoo.read_spec(stated, registry=REGISTRY)
    assert layers(found) == layers(expected)
    assert found.tensors == expected.tensors
    alike = {repr([values[layer] for values in lists.values()]) for layer in range(n)}
    assert len(found.model.encoder.groups) == len(alike)
    assert zoo.read_spec(found.to_toml(), registry=REGISTRY) == found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"d_ff": each(3, 4, 5), "encoder": {"layers": [{"last": 1, "ffn": "glu"}]}}, [3, 4, 5]),
        ({"encoder": {"layers": [{"first": 3, "d_ff": each(1, 2, 3)}]}}, [1, 2, 3]),
        ({"d_ff": None, "ffn": {**MLP, "d_ff": each(3, 4, 3)}}, [3, 4, 3]),
        ({"ffn": each({**MLP, "d_ff": 3}, "mlp", {**MLP, "d_ff": 4})}, [3, 12, 4]),
        ({"encoder": {"block": each("residual", {"ffn": {"d_ff": 2}}, "residual")}}, [12, 2, 12]),
        (
            {
                "n_layers": 5,
                "d_ff": each(3, 3, 3, 4, 5),
                "encoder": {"layers": [{"at": [0, 3], "ffn": "glu"}, {"at": [1, 4], "ffn": "mlp"}]},
            },
            [3, 3, 3, 4, 5],
        ),
    ],
    ids=[
        "beside a rule",
        "in a rule",
        "of a component",
        "components with a value of their own",
        "blocks",
        "rules that speak of layers in turn",
    ],
)
def test_lists_and_rules_and_places(fields: dict[str, Any], expected: list[int]) -> None:
    found = read(**{"n_layers": 3, **fields})
    assert widths(found) == expected
    rules = [group.at for group in found.model.encoder.layers]
    assert rules == sorted(rules)
    assert zoo.read_spec(found.to_toml()).digest == found.digest


def test_a_child_replaces_the_list_of_its_parent(tmp_path: Path) -> None:
    text = 'format = 1\nname = "up"\nbuilder = "encoder"\nvocab = 9\nd_model = 8\nn_heads = 2\n'
    (tmp_path / "up.toml").write_text(text + "n_layers = 2\nd_ff = { per_layer = [3, 4] }\n")
    for stated, expected in (
        ("d_ff = { per_layer = [5, 6] }", [5, 6]),
        ("d_ff = 7", [7, 7]),
        ("[[encoder.layers]]\nlast = 1\nd_ff = 7", [3, 7]),
    ):
        child = tmp_path / "down.toml"
        child.write_text(f'format = 1\nname = "down"\nextends = "up"\n{stated}\n')
        assert widths(zoo.read_spec(child)) == expected


def test_a_value_of_two_stacks_has_an_effect_in_one() -> None:
    ffn = {"per_layer": ["mlp", {"kind": "mlp", "bias": False}]}
    sizes = {"source_vocab": 9, "target_vocab": 9, "n_layers": 2, "d_model": 8, "n_heads": 2}
    head = {"format": 1, "name": "m", "builder": "encoder_decoder", "d_ff": 3, **sizes}
    found = zoo.read_spec({**head, "ffn": ffn, "decoder": {"block": {"ffn": {"bias": True}}}})
    biased = {name.partition(".ffn.")[0] for name in found.tensors if ".ffn.up_proj.bias" in name}
    assert biased == {"encoder.layers.0", "decoder.layers.0", "decoder.layers.1"}


def test_layers_that_share_weights_may_have_equal_values() -> None:
    shared = {"share_layers": [0, 1, 0]}
    shares = read(n_layers=3, encoder=shared, d_ff=each(3, 4, 3))
    shapes = [shares.tensors[f"encoder.layers.{i}.ffn.up_proj.weight"].shape[0] for i in range(2)]
    assert shapes == [3, 4]
    with pytest.raises(zoo.SpecError, match="layers 0 and 2 share their weights and cannot differ"):
        read(n_layers=3, encoder=shared, d_ff=each(3, 4, 4))


def test_the_full_form_names_the_line_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    head = 'format = 1\nname = "m"\nbuilder = "encoder"\nvocab = 9\nn_layers = 3\nd_model = 8\n'
    path.write_text(head + "n_heads = 2\nd_ff = { per_layer = [\n    3,\n    4,\n    4,\n] }\n")
    found = zoo.read_spec(path)
    lines = to_toml(found.to_dict(), found.origin).splitlines()
    told = [line for line in lines if line.startswith("d_ff = ")]
    assert [line.split("#")[0].strip() for line in told] == ["d_ff = 3", "d_ff = 4"]
    assert [line.rstrip().split("m.toml:")[1] for line in told] == ["9", "10"]
    rows = summary_data(found)["parts"][0]["parts"]
    assert [row["layers"] for row in rows if row["layers"] is not None] == [[0], [1, 2]]


WRONG = {
    "too few": (
        {"d_ff": each(3)},
        "d_ff.per_layer",
        "1 value, one for each layer, and there are 2",
    ),
    "too many": ({"d_ff": each(3, 4, 5)}, "d_ff.per_layer", "3 values, one for each layer, and"),
    "none": ({"d_ff": each()}, "d_ff.per_layer", "0 values, one for each layer, and there are 2"),
    "a number": ({"d_ff": {"per_layer": 3}}, "d_ff.per_layer", "not the integer `3`"),
    "a table": ({"d_ff": {"per_layer": {"a": 3}}}, "d_ff.per_layer", "not a table"),
    "another key": ({"d_ff": {**each(3, 4), "n": 1}}, "d_ff.n", "unknown key `n` in `d_ff`"),
    "a key in an item": (
        {"position": each("rotary", {"kind": "rotary", "bse": 3})},
        "position.per_layer.1.bse",
        "unknown key `bse`",
    ),
    "a key of another kind in an item": (
        {"position": each({"kind": "rotary", "base": 3}, {"kind": "none", "base": 3})},
        "position.per_layer.1.base",
        "`base` is a key of the position `rotary`, `rotary_axial`, `rotary_axial_alternating`, ",
    ),
    "a kind in an item": (
        {"position": each("rotary", {"kind": "rotry"})},
        "position.per_layer.1.kind",
        "unknown position `rotry`",
    ),
    "not a kind": ({"ffn": each("mlp", 3)}, "ffn.per_layer.1", "must be a name or a table"),
    "lists in an item": (
        {"ffn": each("mlp", each("mlp", "mlp"))},
        "ffn.per_layer.1",
        "must be a name or a table",
    ),
    "outside the layers": ({"d_model": each(8, 8)}, "d_model.per_layer", "is read outside"),
    "outside the layers too": ({"norm": each("none", "none")}, "norm.per_layer", "is read outside"),
    "the number of layers": ({"n_layers": each(1, 2)}, "n_layers.per_layer", "is read outside"),
    "beside a wrong number of layers": (
        {"n_layers": "a", "d_ff": each(3, 4)},
        "n_layers",
        "must be an integer",
    ),
    "beside no layers": ({"n_layers": 0, "d_ff": each(3, 4)}, "n_layers", "must be at least 1"),
    "a stack": ({"encoder": each({}, {})}, "encoder.per_layer", "unknown key `per_layer`"),
    "rules": ({"encoder": {"layers": each([], [])}}, "encoder.layers", "must be a list of tables"),
    "of all layers, in a rule": (
        {"n_layers": 4, "encoder": {"layers": [{"last": 2, "d_ff": each(1, 2)}]}},
        "encoder.layers.0.d_ff.per_layer",
        "2 values, one for each layer, and there are 4 layers",
    ),
    "a value that a rule replaces": (
        {"n_layers": 3, "d_ff": each(3, 4, 5), "encoder": {"layers": [{"last": 1, "d_ff": 9}]}},
        "d_ff.per_layer.2",
        "the value for layer 2 has no effect: nothing in it reads it",
    ),
    "a value for a layer beyond the rule": (
        {"encoder": {"layers": [{"last": 1, "d_ff": each(3, 4)}]}},
        "encoder.layers.0.d_ff.per_layer.0",
        "the value for layer 0 has no effect",
    ),
    "a value inside that of another layer": (
        {"ffn": each("mlp", {**MLP, "d_ff": each(1, 2)})},
        "ffn.per_layer.1.d_ff.per_layer.0",
        "the value for layer 0 has no effect",
    ),
    "a value that another one of its layer replaces": (
        {
            "n_layers": 3,
            "d_ff": each(3, 4, 5),
            "encoder": {"layers": [{"first": 3, "ffn": each("mlp", "mlp", {**MLP, "d_ff": 9})}]},
        },
        "d_ff.per_layer.2",
        "the value for layer 2 has no effect",
    ),
    "a value that a list for all layers replaces": (
        {
            "d_ff": None,
            "encoder": {
                "block": {"ffn": {"d_ff": each(3, 4)}},
                "layers": [{"at": [1], "ffn": {"d_ff": 9}}],
            },
        },
        "encoder.layers.0.ffn.d_ff",
        "has no effect: all that read it state their own; the list there has a value for each",
    ),
    "a value that an item replaces": (
        {
            "encoder": {
                "block": {"ffn": each("mlp", {**MLP, "d_ff": 4})},
                "layers": [{"at": [1], "ffn": {"d_ff": 9}}],
            }
        },
        "encoder.layers.0.ffn.d_ff",
        "has no effect: all that read it state their own; the list there has a value for each",
    ),
    "numbers of layers, in no rule": (
        {"d_ff": each(3, 4), "encoder": {"at": [1]}},
        "encoder.at",
        "unknown key `at` in `encoder`",
    ),
    "a list that nobody reads": (
        {"d_ff": None, "encoder": {"d_ff": each(3, 4), "block": {"ffn": {"d_ff": 6}}}},
        "encoder.d_ff",
        "has no effect: all that read it state their own",
    ),
    "the placement of norms": (
        {"norm_placement": each("pre", "post")},
        "norm_placement.per_layer",
        "what a `block` states; a rule states the norms of each branch, as in `self_attn = { norms",
    ),
    "positions in the embedding": (
        {"position": each("none", "sinusoidal")},
        "position.per_layer",
        "added to the embeddings are the same for all layers",
    ),
}


@pytest.mark.parametrize(("fields", "place", "message"), WRONG.values(), ids=WRONG)
def test_mistakes_are_told_where_they_are(fields: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(zoo.SpecError) as caught:
        read(**fields)
    (problem,) = caught.value.problems
    assert message in f"{problem.message}; {problem.help}"
    assert str(problem.place).split(": ")[1].startswith(place)


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"d_ff": each("a", 3, -4)}, ["d_ff.per_layer.0", "d_ff.per_layer.2"]),
        (
            {"encoder": {"layers": [{"first": 1, "d_ff": "a"}, {"last": 1, "d_ff": -4}]}},
            ["encoder.layers.0.d_ff", "encoder.layers.1.d_ff"],
        ),
        ({"d_ff": each(3, "3", 3)}, ["d_ff.per_layer.1"]),
        ({"n_layers": "a", "d_ff": each()}, ["d_ff.per_layer", "n_layers"]),
    ],
    ids=["values", "rules", "a text like a number", "none of an unknown number"],
)
def test_all_wrong_values_of_layers_are_told(fields: dict[str, Any], places: list[str]) -> None:
    with pytest.raises(zoo.SpecError) as caught:
        read(**{"n_layers": 3, **fields})
    found = [str(problem.place).split(": ")[1] for problem in caught.value.problems]
    assert found == places


def test_heads_may_differ_under_positions_in_the_embedding() -> None:
    model = built(n_heads=each(2, 4), position="sinusoidal", encoder={"final_norm": False})
    assert [block.self_attn.n_heads for block, _ in layers(model.spec)] == [2, 4]
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 8)
