"""`zoo show ffn.glu`: what a component is, and its keys."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from trials import Refused, spec

import zoo
from zoo.cli import run
from zoo.component import given_of

PLUGIN = '''
from typing import Annotated, Literal

from zoo.component import PositiveFloat, Shared, Size, Slot
from zoo.only_with import OnlyWith, UNSTATED
from zoo.slots import Head, Norm


class Mine(Head):
    """The formula. More of it."""

    n_classes: Size
    """How many
    there are."""
    width: Shared[Size]
    form: Literal["a", "b"] = "a"
    """The form: `a` or `b`."""
    gain: Annotated[PositiveFloat | None, OnlyWith("form", "b", default=0.5)] = UNSTATED
    """With `b`: the gain."""
    norm: Annotated[Norm, Slot("norm")]
    """Before the map."""


class Bare(Norm):
    """Nothing."""
'''
REGISTRY = """format = 1
[head]
mine = "mine.py:Mine"
[norm]
bare = "mine.py:Bare"
[defaults]
norm = { kind = "rms_norm", override = true }
"""
TOLD = """\
head.mine  (mine.py:Mine)

The formula. More of it.

    head = { kind = "mine", n_classes = ... }

  n_classes: integer at least 1; required
      How many there are.
  width: integer at least 1; required; shared
  form: "a", "b"; default: "a"
      The form: `a` or `b`.
  gain: number above 0; default: 0.5
      With `b`: the gain.
  norm: norm; default: "rms_norm"
      Before the map.

Shared keys may stand in any table around the component; the nearest counts.
"""


@pytest.fixture
def own(project: Path) -> Path:
    """A project with a head and a norm, and another default norm."""
    (project / "mine.py").write_text(PLUGIN)
    (project / "registry.toml").write_text(REGISTRY)
    return project


def test_the_keys_of_a_component(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "head.mine"]) == 0
    assert capsys.readouterr().out == TOLD
    assert run(["show", "norm.bare"]) == 0
    assert capsys.readouterr().out == (
        'norm.bare  (mine.py:Bare)\n\nNothing.\n\n    norm = "bare"\n\nIt has no keys.\n'
    )
    assert run(["show", "head.mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (table,) = told["tables"]
    assert [(key["name"], key["required"], key["shared"]) for key in table["keys"]] == [
        ("n_classes", True, False),
        ("width", True, True),
        ("form", False, False),
        ("gain", False, False),
        ("norm", False, False),
    ]


def test_each_component_that_ships(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key that a spec can state is there, and the line of a spec is TOML."""
    registry = zoo.load_registry()
    for name in zoo.list_components():
        slot, kind = name.split(".")
        cls = registry.plugin(slot, kind)
        assert run(["show", name, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        own = {key["name"] for key in told["tables"][0]["keys"]}
        assert own == cls.model_fields.keys() - given_of(cls) - {"kind"}
        assert all("null" not in key["default"] for key in told["tables"][0]["keys"])  # not in TOML
        (stated,) = tomllib.loads(told["in_a_spec"].replace("...", "1")).items()
        table = stated[1] if isinstance(stated[1], dict) else {"kind": stated[1]}
        assert (stated[0], table["kind"]) == (slot, kind)
        assert run(["show", name]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(name)
        lines.remove(f"    {told['in_a_spec']}")  # TOML, which is not wrapped
        assert max(map(len, lines)) <= 100


def test_parts_have_tables_of_their_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "builder.decoder"]) == 0
    out = capsys.readouterr().out
    assert out.index("\n  vocab: ") < out.index("\n[decoder]\n") < out.index("\n  d_model: ")
    assert out.index("\n  n_layers: ") < out.index("\n[[decoder.layers]]\n")


def test_a_file_or_a_model_of_the_name_comes_first(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "tiny.toml").write_text(spec())
    (own / "registry.toml").write_text(f'{REGISTRY}\n[models]\n"norm.bare" = "tiny.toml"\n')
    assert run(["show", "norm.bare"]) == 0
    assert capsys.readouterr().out.startswith("bad  (encoder_decoder)")
    zoo.save(zoo.build("tiny.toml"), "head.mine")
    assert run(["show", "head.mine"]) == 0
    assert capsys.readouterr().out.startswith("bad  (encoder_decoder)")


def test_names_that_are_nearly_of_components(refused: Refused, project: Path) -> None:
    told = refused("show", "glu")
    assert "`glu` is a component, not a model\n      = help: `zoo show ffn.glu` says" in told
    assert "`zoo show position.none` or `zoo show head.none` says" in refused("show", "none")
    told = refused("show", "norm")
    assert "slot of components, not a model\n      = help: `zoo list components norm`" in told
    told = refused("show", "swiglu")
    assert "no model `swiglu`\n      = help: `zoo show ffn.glu` says which keys" in told
    (project / "swiglu.toml").write_text(spec())
    assert "did you mean `swiglu.toml`?" in refused("show", "swiglu")
    assert "did you mean `ffn.glu`?" in refused("show", "ffn.gluu")
    assert "ffn.glu is a component, and --resolved" in refused("show", "ffn.glu", "--resolved")
    assert "ffn.glu is a component, and --svg" in refused("show", "ffn.glu", "--svg", "a.svg")
    (project / "glu.toml").write_text(spec())
    assert "did you mean `glu.toml`?" in refused("show", "glu")


@pytest.mark.parametrize(
    ("slot", "word", "written"),
    [
        ("ffn", "geglu", '{ kind = "glu", activation = "gelu" }'),
        ("ffn", "swiglu", "glu"),
        ("self_attn", "MQA", '{ kind = "multi_head", n_kv_heads = 1 }'),
        ("self_attn", "gqa", '{ kind = "multi_head", n_kv_heads = ... }'),
    ],
)
def test_a_word_of_papers_is_told_with_its_settings(
    refused: Refused, project: Path, slot: str, word: str, written: str
) -> None:
    """The kind alone would be another model: `glu` has SiLU, and `multi_head` one head each."""
    (project / "word.toml").write_text(spec().replace("n_heads", f'{slot} = "{word}"\nn_heads', 1))
    assert f"= help: did you mean `{written}`?\n" in refused("validate", "word.toml")


def test_a_component_that_cannot_be_loaded(own: Path, refused: Refused) -> None:
    (own / "mine.py").write_text("import nowhere")
    told = refused("show", "head.mine")
    assert "head `mine` cannot be loaded" in told
    assert "No module named 'nowhere'" in told
