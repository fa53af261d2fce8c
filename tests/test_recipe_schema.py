"""The JSON Schema of recipes: it accepts the recipes that the zoo accepts, refuses those that it
refuses, and describes each key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator as Validator
from jsonschema_rs import meta
from schema_errors import place
from toy_training import RECIPE, write_toy

from zoo.cli import run
from zoo.errors import SpecError
from zoo.schema.recipes import recipe_schema
from zoo.training.data_tables import Files
from zoo.training.recipe import KINDS, TABLES, read_recipe
from zoo.training.tables import Head

ROOT = Path(__file__).parent.parent
RECIPES = sorted(ROOT.glob("recipes/*/recipe.toml"))
CLASSES = [
    Head,
    Files,
    *TABLES.values(),
    *(cls for kinds in KINDS.values() for cls in kinds.values()),
]


@pytest.fixture(scope="module")
def validator() -> Validator:
    schema = recipe_schema()
    meta.validate(schema)
    return Validator(schema)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_shipped_recipes_are_valid(path: Path, validator: Validator) -> None:
    assert not list(validator.iter_errors(tomllib.loads(path.read_text())))


CHANGES = {
    "nothing": ("", "", None),
    "an unknown key": ("steps = 12", "steps = 12\nstep = 12", "$.training"),
    "an unknown table": ("[training]", "[train]\n[training]", "$"),
    "a missing key": ("steps = 12", "", "$.training"),
    "no name": ('name = "toy"', "", "$"),
    "a missing table": ('[tokenizer]\nkind = "bpe"', "", "$"),
    "no table for training": (RECIPE[RECIPE.index("[training]") :], "", "$"),
    "a missing kind": ('kind = "bpe"', "", "$.tokenizer"),
    "an unknown kind": ('"adamw"', '"adamv"', "$.optimizer.kind"),
    "a key of another kind": ("lr = 1e-2", "lr = 1e-2\nmomentum = 0.9", "$.optimizer"),
    "a table for a word": ('[tokenizer]\nkind = "bpe"', '[tokenizer.bpe]\na = "b"', "$.tokenizer"),
    "a wrong type": ("steps = 12", 'steps = "12"', "$.training.steps"),
    "out of range": ("smoothing = 0.1", "smoothing = 1.0", "$.training.label_smoothing"),
    "one beta": ("lr = 1e-2", "lr = 1e-2\nbetas = [0.9]", "$.optimizer.betas"),
    "a wrong beta": ("lr = 1e-2", 'lr = 1e-2\nbetas = [0.9, "x"]', "$.optimizer.betas[1]"),
    "held out, a file": ("valid = 4", 'valid = "other.tsv"', None),
    "two files": (
        'kind = "tsv"\ntrain = "toy.tsv"',
        'kind = "parallel"\ntrain = { source = "a", target = "b" }',
        None,
    ),
    "one file of two": (
        'kind = "tsv"\ntrain = "toy.tsv"',
        'kind = "parallel"\ntrain = { source = "a" }',
        "$.data.train",
    ),
    "evaluation": ("[training]", "[evaluation]\nbeam = 2\n[training]", None),
}


@pytest.mark.parametrize(("right", "wrong", "at"), CHANGES.values(), ids=CHANGES)
def test_it_refuses_what_the_zoo_refuses(
    right: str,
    wrong: str,
    at: str | None,
    tmp_path: Path,
    validator: Validator,
) -> None:
    assert right in RECIPE
    path = write_toy(tmp_path, RECIPE.replace(right, wrong))
    found = {place(error) for error in validator.iter_errors(tomllib.loads(path.read_text()))}
    if at is None:
        read_recipe(path)
        assert not found
    else:
        with pytest.raises(SpecError):
            read_recipe(path)
        assert found == {at}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_key_has_a_meaning(cls: Any) -> None:
    schema = recipe_schema()
    table = schema["$defs"].get(cls.__name__, schema)
    for name in cls.model_fields:
        assert len(table["properties"][name]["description"]) > 10


def test_a_class_tells_its_own_meaning_of_a_key_of_its_parent() -> None:
    tables = recipe_schema()["$defs"]
    for kind, told in (("Adam", "added to their gradients"), ("AdamW", "subtracted from them")):
        assert told in tables[kind]["properties"]["weight_decay"]["description"]


def test_defaults_are_told() -> None:
    """Those of Vaswani et al. 2017, sections 5.3 and 6.1."""
    adam, evaluation = (
        {
            key: value.get("default")
            for key, value in recipe_schema()["$defs"][name]["properties"].items()
        }
        for name in ("Adam", "Evaluation")
    )
    assert (adam["betas"], adam["eps"]) == ([0.9, 0.98], 1e-9)
    assert (evaluation["beam"], evaluation["length_penalty"]) == (4, 0.6)


def test_keys_have_no_titles_beside_their_names() -> None:
    assert json.dumps(recipe_schema()).count('"title"') == 1  # that of the whole


def test_nothing_may_be_null_which_toml_has_not() -> None:
    assert "null" not in json.dumps(recipe_schema())


def test_editors_find_every_kind_and_key_in_any_of() -> None:
    """taplo looks for completions in `anyOf`, but not in `then` and `else`."""
    schema = recipe_schema()
    for name, kinds in KINDS.items():
        assert {"$ref": f"#/$defs/any-{name}"} in schema["properties"][name]["anyOf"]
        table = schema["$defs"][f"any-{name}"]["properties"]
        assert table["kind"]["enum"] == list(kinds)
        assert {key for cls in kinds.values() for key in cls.model_fields} < set(table)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "recipe"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(recipe_schema()))
    assert run(["schema", "recipes"]) == 2
    assert "'recipes' is not one of" in capsys.readouterr().err
