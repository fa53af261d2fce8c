"""The JSON Schema with third-party plugins."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from drawings import SMALL
from jsonschema_rs import Draft202012Validator as Validator
from jsonschema_rs import meta

from zoo.cli import run
from zoo.registry import load_registry
from zoo.schema.specs import spec_schema

PARTS = '''
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator, WrapValidator, field_validator
)

from zoo.component import Component, Part, Shared, Slot
from zoo.slots import FeedForward


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


class Size(Component):
    depth: int


class Mine(FeedForward):
    """A network of mine."""

    rank: int
    """How many."""
    shade: Shared[float] = 0.5
    """How dark."""
    colour: Colour | None = None
    """Which colour."""
    shape: Annotated[tuple[int, ...], BeforeValidator(lambda v: (v,))] = ()
    """A number or several."""
    length: int = 1
    height: int = 1
    breadth: int = 1
    weight: Annotated[int, WrapValidator(lambda v, check: check(0 if v == "no" else v))] = 1
    pace: Annotated[
        int, BeforeValidator(len, json_schema_input_type=Literal["slow", "fast"])
    ] = 1
    extra: Callable[[int], int] = abs
    size: Annotated[Size, Part()]
    inner: Annotated[FeedForward, Slot("ffn", default="mlp", inherit=False)]

    @field_validator("length", mode="before")
    @classmethod
    def _metres(cls, value):
        return int(value.removesuffix("m")) if isinstance(value, str) else value

    @field_validator("height", mode="wrap")
    @classmethod
    def _feet(cls, value, check):
        return 3 if value == "ten feet" else check(value)
'''


OTHER = '''
from enum import Enum
from typing import Annotated

from pydantic import model_validator

from zoo.component import Component, Part
from zoo.slots import FeedForward


class Colour(str, Enum):
    GREEN = "green"


class Size(Component):
    height: int


class Short(FeedForward):
    rank: int

    @model_validator(mode="before")
    @classmethod
    def _of_words(cls, values):
        return values


class Theirs(FeedForward):
    """Another network, with colours of its own."""

    colour: Colour | None = None
    size: Annotated[Size, Part()]
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "registry.toml").write_text(
        'format = 1\n[ffn]\nmine = "parts.py:Mine"\nlost = "lost.py:Lost"\n'
        'theirs = "other.py:Theirs"\nshort = "other.py:Short"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("mine")
def test_a_plugin_of_ones_own_is_in_the_schema() -> None:
    made, _ = spec_schema(load_registry())
    meta.validate(made)
    validator = Validator(made)
    table = made["$defs"]["ffn.mine"]
    assert table["description"] == "A network of mine."
    rank = table["properties"]["rank"]
    assert rank["description"] == "How many."
    assert made["$defs"][rank["$ref"].split("/")[-1]]["else"] == {"type": "integer"}
    valid = {"kind": "mine", "rank": 3, "shade": 1, "colour": "red", "shape": 7, "length": "3m"}
    small = tomllib.loads(SMALL)
    assert list(validator.iter_errors({**small, "ffn": valid})) == []
    assert list(validator.iter_errors({**small, "shade": 0.25, "ffn": valid})) == []
    for right in (
        {"rank": {"per_layer": [3, 4]}},
        {"size": {"depth": 3}},
        {"pace": "slow", "weight": "no", "extra": 3, "height": "ten feet"},
        {"inner": {**valid, "inner": "theirs"}},
    ):
        assert validator.is_valid({**small, "ffn": {**valid, **right}})
    for wrong in (
        {"rank": "3"},
        {"rank": {"per_layer": [3, "4"]}},
        {"colour": "green"},
        {"shade": "dark"},
        {"breadth": "3m"},
        {"rnk": 3},
        {"size": {"height": 3}},
        {"pace": "quick"},
        {"ffn": "mlp"},  # `inner` is not inherited
        {"inner": {**valid, "rnk": 3}},
    ):
        assert not validator.is_valid({**small, "ffn": {**valid, **wrong}})
    assert validator.is_valid({**small, "ffn": {"kind": "short", "rank": "three"}})
    for key, value in {"rank": 3, "inner": "mlp"}.items():
        assert not validator.is_valid({**small, key: value, "ffn": "mine"})
    for colour, size, fits in (
        ("green", "height", True),
        ("red", "height", False),
        ("green", "depth", False),
    ):
        theirs = {"kind": "theirs", "colour": colour, "size": {size: 3}}
        assert validator.is_valid({**small, "ffn": theirs}) is fits


def test_a_plugin_that_cannot_be_loaded_hurts_no_other(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, problems = spec_schema(load_registry())
    assert len(problems) == 1
    assert "lost" in problems[0].message
    validator = Validator(made)
    small = tomllib.loads(SMALL)
    assert list(validator.iter_errors({**small, "ffn": {"kind": "lost", "anything": 1}})) == []
    assert not validator.is_valid({**small, "ffn": {"kind": "mlp", "anything": 1}})
    assert run(["schema"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == made
    assert "registry.toml:4" in shown.err
    assert "Traceback" not in shown.err
