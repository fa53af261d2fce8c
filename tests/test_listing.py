"""The Python functions that list models and components."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trials import Refused

import zoo
from zoo.cli import run
from zoo.registry import read_layers
from zoo.reports.listing import listing_data, listing_text

REGISTRY = """
format = 1

[norm]
twice = "own.py:Twice"
thrice = "own.py:Thrice"

[ffn]
twofold = "own.py:Twofold"

[models]
two-small = "two.toml"
one-small = "one.toml"
"""


@pytest.fixture
def own(tmp_path: Path) -> zoo.Registry:
    """Return a registry with only its own names; none of the files exists."""
    path = tmp_path / "registry.toml"
    path.write_text(REGISTRY)
    return read_layers([path])


def test_the_names_of_models_match_as_file_names_do(own: zoo.Registry) -> None:
    assert zoo.list_models(registry=own) == ["one-small", "two-small"]
    assert zoo.list_models("t*", registry=own) == ["two-small"]
    assert zoo.list_models("three*", registry=own) == []


def test_a_pattern_is_a_text() -> None:
    for listed in (zoo.list_models, zoo.list_components):
        with pytest.raises(TypeError, match=r"`pattern` is a text .*, not int"):
            listed(5)  # type: ignore[arg-type]


def test_components_match_by_their_names_and_by_their_slots(own: zoo.Registry) -> None:
    everything = ["norm.thrice", "norm.twice", "ffn.twofold"]
    assert sorted(zoo.list_components(registry=own)) == sorted(everything)
    assert zoo.list_components("norm", registry=own) == everything[:2]
    assert sorted(zoo.list_components("tw*", registry=own)) == ["ffn.twofold", "norm.twice"]


def test_of_two_words_the_first_is_what_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "modles", "gpt*"]) == 2
    assert "'modles' is none of 'models', 'components', 'sources'" in capsys.readouterr().err


def test_models_stand_below_the_registry_that_names_them() -> None:
    rows = [
        {"name": name, "target": f"{name}.toml", "registry": registry}
        for name, registry in (("a", "one"), ("b", "two"), ("c", "one"))
    ]
    assert listing_text({"models": rows}).splitlines() == [
        "models of one",
        "  a  a.toml",
        "  c  c.toml",
        "",
        "models of two",
        "  b  b.toml",
    ]


def test_the_default_of_a_slot_is_marked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "components", "norm.*"]) == 0
    before = capsys.readouterr().out
    assert "layer_norm             Layer normalisation (the default)\n" in before
    assert before.count("(the default)") == 1
    (project / "registry.toml").write_text(
        'format = 1\n[defaults]\nnorm = { kind = "rms_norm", override = true }\n'
    )
    assert run(["list", "components", "norm.*"]) == 0
    after = capsys.readouterr().out
    assert "rms_norm               Root mean square normalisation (the default)\n" in after
    assert after.count("(the default)") == 1


def test_summaries_of_installed_modules_are_read_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "several").mkdir()
    for name in ("single.py", "several/__init__.py", "several/norms.py"):
        (tmp_path / name).write_text(f'raise SystemExit\nclass A:\n    """In {name} alone."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    targets = {"a": "single:A", "b": "several:A", "c": "several.norms:A", "d": "several.absent:A"}
    lines = [f'{name} = "{target}"\n' for name, target in {**targets, "e": "absent:A"}.items()]
    path = tmp_path / "registry.toml"
    path.write_text("format = 1\n[norm]\n" + "".join(lines))
    rows = listing_data(read_layers([path]), "components", None)["components"]
    assert {row["name"]: row["summary"] for row in rows} == {
        "a": "In single.py alone",
        "b": "In several/__init__.py alone",
        "c": "In several/norms.py alone",
        "d": "",
        "e": "",
    }


def test_without_a_registry_names_are_those_around_the_working_directory() -> None:
    assert {"gpt2", "vaswani-base", "beer-de-en"} <= set(zoo.list_models())
    assert "norm.rms_norm" in zoo.list_components("norm")


def test_a_spec_is_printed_as_zoo_show_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpt2"]) == 0
    assert f"{zoo.read_spec('gpt2')}\n" == capsys.readouterr().out


@pytest.fixture
def families(project: Path) -> Path:
    """Return the folder of families that the project's registry names."""
    folder = project / "families"
    folder.mkdir()
    (project / "registry.toml").write_text('format = 1\nfamilies = "families"\n')
    base = "format = 1\nmodel_type = []\n\n[spec]\nd_model = 8\n"
    (folder / "own-base.toml").write_text(base)
    (folder / "own.toml").write_text(
        'format = 1\nextends = "own-base"\nmodel_type = ["mine", "yours"]\n'
        'spec = { builder = "encoder" }\n'
    )
    return folder


def test_families_match_by_their_names_and_by_the_types_of_models(
    families: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A family may leave the builder to those that extend it."""
    assert run(["families", "own*"]) == 0
    assert capsys.readouterr().out == (
        "own       encoder    4 lines  mine, yours\nown-base             4 lines  \n"
    )
    assert run(["families", "yours", "--json"]) == 0
    own = {"family": "own", "model_types": ["mine", "yours"], "kind": "encoder", "lines": 4}
    assert json.loads(capsys.readouterr().out) == [own]
    assert run(["families"]) == 0
    assert "\ngpt2 " in capsys.readouterr().out


@pytest.mark.parametrize("builder", ["3", '{ kind = "encoder" }'])
def test_a_family_whose_builder_is_none(
    families: Path, capsys: pytest.CaptureFixture[str], builder: str
) -> None:
    """`zoo lint` tells what is wrong with it."""
    path = families / "own.toml"
    path.write_text(path.read_text().replace('"encoder"', builder))
    assert run(["families"]) == 0
    assert "\nown " in capsys.readouterr().out


def test_a_family_that_is_not_known(families: Path, refused: Refused) -> None:
    told = refused("families", "yuors")
    assert "there is no family `yuors`" in told
    assert "did you mean `yours`?" in told


def test_sources_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of them is imported: this file is not there."""
    registry = tmp_path / "registry.toml"
    registry.write_text("format = 1\n[source]\nmine = 'absent.py:Mine'\n")
    assert run(["--registry", str(registry), "list", "sources"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["source"]
    assert dict(lines[1:])["local"] == "The files of a folder; or one file, under its own name"
    assert sorted(name for name, *_ in lines[1:]) == [
        "fsspec", "hf", "https", "local", "mine", "pypi"
    ]  # fmt: skip
    assert run(["list", "source.h*"]) == 0
    assert capsys.readouterr().out.split()[1] == "hf"
